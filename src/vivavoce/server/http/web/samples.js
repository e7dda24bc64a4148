/** Texts to try, and a sentence to hear voices with. */

import { chinese } from "./i18n.js";

const CHINESE = "你好，欢迎！这段话不是录音，而是电脑一边生成、一边读给你听的。";

/** Names of samples, which `t` translates, and their texts. */
/** @type {[string, string][]} */
const ENGLISH = [
  ["A welcome", "Welcome! Nobody has recorded this. A computer reads it aloud, and begins before it has finished."],
  ["A story", "The old lighthouse keeper found a letter in a bottle. It said: I can see your light from the other " +
    "shore. That night, for the first time in thirty years, he waved back."],
  ["Numbers", "The train to Boston leaves at 7:45 from platform 9. Two tickets cost 46 dollars, and the trip takes " +
    "3 hours."],
];

/**
 * @param {boolean} isDemo Whether the model is the demo, which reads only English.
 * @returns {[string, string][]}
 */
export function samples(isDemo) {
  if (isDemo) return ENGLISH;
  return chinese ? [["中文", CHINESE], ...ENGLISH] : [...ENGLISH, ["中文", CHINESE]];
}

/**
 * @param {boolean} isDemo
 * @returns {string}
 */
export function sentence(isDemo) {
  return chinese && !isDemo ? "早上好！我读书给你听的时候，就是这个声音。" : "Good morning! This is how I sound when I read to you.";
}
