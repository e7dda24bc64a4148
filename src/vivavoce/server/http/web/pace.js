/** How much sound must be there before it is played, so that the rest comes in time. */

/** Where the last rate of this tab is kept: the next speech need not find it out again. */
const PLACE = "vivavoce.pace";

/** Seconds that the last rate counts for, beside what is measured now. */
const MEMORY_S = 2;

/** A first piece that came later than so many times its own length is no sign of a fast server. */
const LATE = 3;
const SOON_S = 0.7;

/** Seconds of speech for a letter, and for a Chinese or Japanese character. */
const LETTER_S = 0.07;
const CJK_S = 0.24;

/** Letters that the guess above counts for, beside what was spoken. */
const PRIOR_LETTERS = 60;

/** The rest may be slower than what came. */
const SAFETY = 1.1;

/** Watches one speech arrive. */
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
    /** What was spoken of the text before the newest segment: guessed and real seconds, and the place in the text. */
    this.known = { guessS: 0, audioS: 0, place: 0 };
    this.remembered = Number(sessionStorage.getItem(PLACE) ?? NaN);
  }

  /** @param {number} seconds Of a piece that has arrived. */
  piece(seconds) {
    this.lastS = (performance.now() - this.began) / 1000;
    if (Number.isNaN(this.firstS)) [this.firstS, this.firstLengthS] = [this.lastS, seconds];
    this.longestS = Math.max(this.longestS, seconds);
    this.arrivedS += seconds;
  }

  /** @param {{start: number, at: number}} segment One that begins. */
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

  /** Seconds that the whole speech will have, a guess that gets better. */
  get expectedS() {
    const { guessS, audioS, place } = this.known;
    const prior = PRIOR_LETTERS * LETTER_S;
    const rest = sum(this.letters.slice(place));
    return Math.max(this.arrivedS, audioS + (rest * (audioS + prior)) / (guessS + prior));
  }

  /** Seconds of sound to gather before it plays; NaN: wait for the next piece to know. */
  get neededS() {
    const { rate } = this;
    if (!(rate < 1)) return rate >= 1 ? 0 : NaN;
    return (this.expectedS - this.arrivedS) * (1 / rate - 1) * SAFETY + this.longestS;
  }

  /** The speech has ended. */
  remember() {
    if (this.arrivedS - this.firstLengthS > 1) sessionStorage.setItem(PLACE, String(Math.min(this.rate, 50)));
  }
}

/** @param {number[]} all */
function sum(all) {
  return all.reduce((total, each) => total + each, 0);
}
