/** What is followed by a stream at this moment; what is, need not be asked for again and again. */
const followed = new Set<string>();

/** Whether that is a change. */
export function setFollowed(name: string, live: boolean): boolean {
  if (followed.has(name) === live) return false;
  if (live) followed.add(name);
  else followed.delete(name);
  return true;
}

export function isFollowed(name: string): boolean {
  return followed.has(name);
}
