/** The history of spoken texts, stored in this browser only (IndexedDB), with limits of number and size. */

/**
 * @typedef {object} Entry
 * @property {number} [id] Later entries have greater ids.
 * @property {number} when Milliseconds since 1970.
 * @property {import("./speech.js").Wish} wish
 * @property {Blob} audio A WAV file.
 * @property {number} seconds Length of the audio.
 * @property {import("./speech.js").SegmentEvent[]} [segments]
 * @property {string} verdict How the speech ended, in words.
 */

const MOST_ENTRIES = 20;
const MOST_BYTES = 150e6;

/** @type {Promise<IDBDatabase> | null} */
let opened = null;

/** @returns {Promise<IDBDatabase>} */
function open() {
  opened ??= new Promise((resolve, reject) => {
    const asked = indexedDB.open("vivavoce", 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore("spoken", { keyPath: "id", autoIncrement: true });
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
  });
  return opened;
}

/**
 * @template T
 * @param {IDBTransactionMode} mode
 * @param {(store: IDBObjectStore) => IDBRequest<T>} work
 * @returns {Promise<T>}
 */
async function inStore(mode, work) {
  const transaction = (await open()).transaction("spoken", mode);
  const asked = work(transaction.objectStore("spoken"));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(asked.result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}

/** @returns {Promise<Entry[]>} All entries, the youngest first. */
export async function entries() {
  return (await inStore("readonly", (store) => /** @type {IDBRequest<Entry[]>} */ (store.getAll()))).reverse();
}

/**
 * Store an entry; delete the oldest entries if there is no room for it.
 * @param {Entry} entry
 */
export async function remember(entry) {
  let room = MOST_BYTES - size(entry);
  if (room < 0) return;
  const older = await entries();
  for (const [place, old] of older.entries()) {
    room -= size(old);
    if (place >= MOST_ENTRIES - 1 || room < 0) await forget(/** @type {number} */ (old.id));
  }
  await inStore("readwrite", (store) => store.add(entry));
}

/** @param {number} id */
export async function forget(id) {
  await inStore("readwrite", (store) => store.delete(id));
}

/** Delete all entries. */
export async function forgetAll() {
  await inStore("readwrite", (store) => store.clear());
}

/** @param {Entry} entry */
function size(entry) {
  return entry.audio.size + (entry.wish.reference?.size ?? 0);
}
