"""How English writes and names things: the tables of `english.py`."""

from __future__ import annotations

from vivavoce.service.text.natural.values import Forms, Locale

_CALENDAR = """
January February March April May June July August September October November December
Monday Tuesday Wednesday Thursday Friday Saturday Sunday
"""
_MONTHS, _WEEKDAYS = map(str.split, _CALENDAR.strip().splitlines())
# A name, and its plural behind a slash where it is not the name with an s.
_UNITS = """
km: kilometer; m: meter; cm: centimeter; mm: millimeter; µm μm um: micrometer; nm: nanometer; mi: mile;
ft: foot/feet; yd: yard; kg: kilogram; g: gram; mg: milligram; µg μg mcg: microgram; lb lbs: pound; oz: ounce;
l L: liter; ml mL: milliliter; cl: centiliter; dl: deciliter; gal: gallon; tbsp tbsp.: tablespoon;
tsp tsp.: teaspoon; °C ℃: degree Celsius/degrees Celsius; °F ℉: degree Fahrenheit/degrees Fahrenheit; °: degree;
km/h kph kmh: kilometer per hour/kilometers per hour; mph: mile per hour/miles per hour;
m/s: meter per second/meters per second; m/s²: meter per second squared/meters per second squared;
Mbps Mbit/s: megabit per second/megabits per second; Gbps: gigabit per second/ gigabits per second;
kbps: kilobit per second/kilobits per second; MB/s: megabyte per second/megabytes per second;
GB/s: gigabyte per second/gigabytes per second; m² m2 sqm: square meter; km² km2: square kilometer;
cm² cm2: square centimeter; m³ m3: cubic meter; cm³ cm3: cubic centimeter; ft² sqft: square foot/square feet;
ha: hectare; Hz: hertz/hertz; kHz: kilohertz/kilohertz; MHz: megahertz/megahertz; GHz: gigahertz/gigahertz;
KB kB: kilobyte; MB: megabyte; GB: gigabyte; TB: terabyte; PB: petabyte; KiB: kibibyte; MiB: mebibyte; GiB: gibibyte;
TiB: tebibyte; W: watt; kW: kilowatt; MW: megawatt; GW: gigawatt; kWh: kilowatt hour; MWh: megawatt hour; V: volt;
mV: millivolt; kV: kilovolt; mA: milliamp; mAh: milliamp hour; Ω: ohm; J: joule; kJ: kilojoule; kcal: kilocalorie;
cal: calorie; N: newton; Pa: pascal; hPa: hectopascal; kPa: kilopascal;
psi: pound per square inch/pounds per square inch; bar: bar; dB: decibel; s sec secs: second; ms: millisecond;
µs μs us: microsecond; ns: nanosecond; min mins: minute; h hr hrs: hour;
rpm: revolution per minute/revolutions per minute; fps: frame per second/frames per second; px: pixel;
dpi: dot per inch/dots per inch; ppm: part per million/parts per million; g/l g/L: gram per liter/grams per liter;
mg/l mg/L: milligram per liter/milligrams per liter; kg/m³: kilogram per cubic meter/kilograms per cubic meter;
mmHg: millimeter of mercury/millimeters of mercury; t: ton
"""
_CURRENCIES = """
$ US$ USD: dollar, cent; € EUR: euro, cent; £ GBP: pound, penny/pence; ¥ ￥ JPY: yen/yen; CNY RMB: yuan/yuan;
₩ KRW: won/won; ₹ Rs. Rs INR: rupee, paisa/paise; ₽ RUB: ruble, kopek; CHF: Swiss franc, centime;
A$ AUD: Australian dollar, cent; C$ CA$ CAD: Canadian dollar, cent; HK$ HKD: Hong Kong dollar, cent;
NZ$ NZD: New Zealand dollar, cent; ¢: cent; ₿ BTC: bitcoin; ₺ TRY: lira, kurus/kurus; ₫ VND: dong/dong;
R$ BRL: real/reais, centavo; SEK: Swedish krona/Swedish kronor
"""
_SAID = """
Mr. mister; Mrs. missus; Ms. miz; Prof. professor; Gen. general; Col. colonel; Capt. captain;
Lt. lieutenant; Sgt. sergeant; Sen. senator; Rep. representative; Gov. governor; Pres. president; Rev. reverend;
Hon. honorable; Jr. junior; Sr. senior; Ph.D. PhD; e.g. for example; i.e. that is; etc. et cetera; vs. versus;
vs versus; cf. compare; approx. approximately; dept. department; Dept. Department; Ave. Avenue; Blvd. Boulevard;
Rd. Road; Ln. Lane; Pl. Place; Sq. Square; Hwy. Highway; Mt. Mount; Ft. Fort; Inc. incorporated; Ltd. limited;
Co. company; Corp. corporation; Bros. brothers; max. maximum; tel. telephone;
Tel. telephone; ext. extension; vol. volume; Vol. volume; fig. figure; Fig. Figure; Figs. Figures; eq. equation;
Eq. Equation; sec. section; ch. chapter; Ch. Chapter; ed. edition; eds. editors; al. al; incl. including;
excl. excluding; govt. government; univ. university; Univ. University; misc. miscellaneous; assn. association;
Apt. apartment; apt. apartment; w/o without; w/ with; c/o care of; a.k.a. also known as; B.C. BC; A.D. AD;
Ste. suite;
Jan. January; Feb. February; Apr. April; Jun. June; Jul. July; Aug. August; Sep. September;
Sept. September; Oct. October; Nov. November; Dec. December
"""
_SIGNS = """
& and; @ at; + plus; = equals; == equals; === equals; != is not equal to; ≠ is not equal to;
<= is less than or equal to; ≤ is less than or equal to; >= is greater than or equal to;
≥ is greater than or equal to; < is less than; > is greater than; ≈ is approximately; ≡ is equivalent to;
± plus or minus; × times; ÷ divided by; * times; / slash; ^ to the power of; ² squared; ³ cubed;
√ the square root of; ∞ infinity; π pi; ∑ the sum of; ∈ is in; % percent; ~ about; → to; -> to; => implies;
⇒ implies; ← from; ↔ to and from; © copyright; ® registered; ™ trademark; § section; ° degrees; − minus; - minus;
€ euros; £ pounds; $ dollars; ¥ yen; № number; && and; || or
"""
_ADDRESS_SIGNS = """
. dot; / slash; : colon; - dash; _ underscore; ? question mark; = equals; & and; # hash; @ at; + plus; % percent;
~ tilde; \\ backslash; , comma; ! exclamation mark; $ dollar; * star; ( open parenthesis; ) close parenthesis
"""


def _forms(name: str) -> Forms:
    one, _, many = " ".join(name.split()).partition("/")
    return one, many.strip() or f"{one}s"


def _rows(table: str) -> list[tuple[list[str], str]]:
    rows = (" ".join(row.split()).partition(": ") for row in table.split(";"))
    return [(keys.split(" "), names) for keys, _, names in rows]


def _pairs(table: str) -> dict[str, str]:
    rows = (row.split(maxsplit=1) for row in " ".join(table.split()).split("; "))
    return {written: said.rstrip(";") for written, said in rows}


LOCALE = Locale(
    language="en",
    order="mdy",
    digits=("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    months={
        **{name.lower(): place for place, name in enumerate(_MONTHS, 1)},
        **{name[:3].lower(): place for place, name in enumerate(_MONTHS, 1)},
        "sept": 9,
    },
    month_names=tuple(_MONTHS),
    weekdays={short: name for name in _WEEKDAYS for short in (name[:3], name[:4], name)},
    magnitudes={
        "thousand": 3,
        "million": 6,
        "billion": 9,
        "trillion": 12,
        "k": 3,
        "K": 3,
        "M": 6,
        "B": 9,
        "T": 12,
        "m": 6,
        "bn": 9,
        "mn": 6,
        "hundred": 2,
    },
    units={key: _forms(names) for keys, names in _rows(_UNITS) for key in keys},
    currencies={
        key: (_forms(main), _forms(minor) if minor else ())
        for keys, names in _rows(_CURRENCIES)
        for main, _, minor in [names.partition(", ")]
        for key in keys
    },
    abbreviations=_pairs(_SAID),
    signs={**_pairs(_SIGNS), **{f"address {sign}": name for sign, name in _pairs(_ADDRESS_SIGNS).items()}},
    idioms={
        "c#": "C sharp",
        "c++": "C plus plus",
        "24/7": "twenty four seven",
        "9/11": "nine eleven",
        "50/50": "fifty fifty",
        "50-50": "fifty fifty",
        "and/or": "and or",
        "n/a": "not applicable",
        "7/11": "seven eleven",
        "20/20": "twenty twenty",
    },
    words={
        "point": "point",
        "minus": "minus",
        "to": "to",
        "score": "to",
        "ratio": "to",
        "percent": "percent",
        "by": "by",
        "per_mille": "per mille",
        "number": "number",
        "hashtag": "hashtag",
        "version": "version",
        "of": "of",
        "duration_cue": "took |lasted |length|duration|time of|ran it|finished in|runtime",
        "ratio_cue": "mix|dilut|ratio|odds|scale|proportion|aspect|diluted|score|won|lost|beat",
        "phone_cue": "call |dial |phone |phone: |tel: |tel. |fax: |text ",
        "version_cue": r"(?i:version|release|python|ios|android|java|cuda|torch|linux|kernel|firmware|api|http) ?\Z",
        "counted_in_roman": "war|chapter|part|volume|act|section|type|phase|book|article|bowl|episode|level|stage|"
        "class|title|scene|figure|table|appendix|grade|tier|mark|round|unit|wars|division|group|category|vitamin|model|step",
        "heads": "st|dr|no|nos|n|p|pp|isbn",
        "kings": "henry|george|charles|louis|edward|william|james|richard|elizabeth|catherine|alexander|nicholas|peter|"
        "frederick|philip|napoleon|pius|paul|john|francis|ferdinand|leopold|wilhelm|gustav|christian|margaret|mary",
    },
)
