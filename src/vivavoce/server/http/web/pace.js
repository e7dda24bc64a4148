/** Computes how much audio to gather before playback starts, so that the rest arrives in time. */

/** Storage key of this tab's last rate, which is the first estimate for the next speech. */
const PLACE = "vivavoce.pace";

/** Weight of the last rate against the present measurement, in seconds of measuring. */
const MEMORY_S = 2;

/** Before a rate is known, a server counts as fast if its first piece came within SOON_S or LATE times its length. */
const LATE = 3;
const SOON_S = 0.7;

/** Seconds of speech for a letter, and for a Chinese or Japanese character. */
const LETTER_S = 0.07;
const CJK_S = 0.24;

/** Weight of these guesses against the text that was spoken, in letters. */
const PRIOR_LETTERS = 60;

/** A factor for the rest of the speech, which may arrive more slowly than its beginning. */
const SAFETY = 1.1;

/** Measures how fast one speech arrives. */
export class Pace {
  /**
   * @param {string} text
   * @param {number} speed
   */
  constructor(text, speed) {
    this.letters = Array.from(text, (letter) => (/[\u3040-\u30ff\u3400-\u9fff]/.test(letter) ? CJK_S : LETTER_S) / speed);
    this.began = performance.now();
    this.firstS = NaN;
    this.lastS = NaN;
    this.firstLengthS = 0;
    this.longestS = 0;
    this.arrivedS = 0;
    /** The text before the newest segment: its guessed and its real seconds, and where in the text it ends. */
    this.known = { guessS: 0, audioS: 0, place: 0 };
    this.remembered = Number(sessionStorage.getItem(PLACE) ?? NaN);
  }

  /** @param {number} seconds Length of a piece that has arrived. */
  piece(seconds) {
    this.lastS = (performance.now() - this.began) / 1000;
    if (Number.isNaN(this.firstS)) [this.firstS, this.firstLengthS] = [this.lastS, seconds];
    this.longestS = Math.max(this.longestS, seconds);
    this.arrivedS += seconds;
  }

  /** @param {{start: number, at: number}} segment A segment that begins. */
  segment({ start, at }) {
    this.known = { guessS: sum(this.letters.slice(0, start)), audioS: at, place: start };
  }

  /** Seconds of audio that arrive in one second; NaN: not known yet. */
  get rate() {
    const prior = Number.isNaN(this.remembered) ? 0 : MEMORY_S;
    const [audio, wall] = [this.arrivedS - this.firstLengthS, this.lastS - this.firstS];
    if (wall + prior > 0) return (audio + prior * (this.remembered || 0)) / (wall + prior);
    const isSoon = this.firstS < Math.max(SOON_S, LATE * this.firstLengthS);
    return isSoon ? Infinity : NaN;
  }

  /** Estimated length of the whole speech in seconds; each segment improves the estimate. */
  get expectedS() {
    const { guessS, audioS, place } = this.known;
    const prior = PRIOR_LETTERS * LETTER_S;
    const rest = sum(this.letters.slice(place));
    return Math.max(this.arrivedS, audioS + (rest * (audioS + prior)) / (guessS + prior));
  }

  /** Seconds of audio to gather before playback starts; NaN: unknown until the next piece. */
  get neededS() {
    const { rate } = this;
    if (!(rate < 1)) return rate >= 1 ? 0 : NaN;
    return (this.expectedS - this.arrivedS) * (1 / rate - 1) * SAFETY + this.longestS;
  }

  /** Keep the rate when the speech has ended. */
  remember() {
    if (this.arrivedS - this.firstLengthS > 1) sessionStorage.setItem(PLACE, String(Math.min(this.rate, 50)));
  }
}

/** @param {number[]} all */
function sum(all) {
  return all.reduce((total, each) => total + each, 0);
}
