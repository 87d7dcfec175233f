import type { SubmitEvent } from "react";

/** The text fields of a form by name; no value for what is not there. */
export function fieldsOf(event: SubmitEvent<HTMLFormElement>): (name: string) => string {
  event.preventDefault();
  const form = new FormData(event.currentTarget);
  return (name) => {
    const value = form.get(name);
    return typeof value === "string" ? value : "";
  };
}
