import { useDebouncedValue } from "@mantine/hooks";
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useCallback, useMemo, useState } from "react";

import { planJob } from "@/api/jobs";
import { Problem } from "@/api/problem";
import type { FieldProblem, Json, JsonObject, Plan } from "@/api/types";
import type { Remark } from "@/lib/spec-yaml";
import { fieldAt, parseSpec, remarksFor, setField } from "@/lib/spec-yaml";

const TYPING_PAUSE_MS = 400;
const NO_PROBLEMS: FieldProblem[] = [];

export interface SpecState {
  text: string;
  setText: (text: string) => void;
  /** Null while the text is no YAML mapping. */
  spec: JsonObject | null;
  field: (path: string[]) => Json | undefined;
  change: (path: string[], value: Json | undefined) => void;
  plan: Plan | undefined;
  defaults: JsonObject | null;
  planning: boolean;
  /** A failure that is about no field: the server is unreachable, the session ended. */
  failure: Error | null;
  problems: FieldProblem[];
  remarks: Remark[];
}

/** The text is the one state; the form reads and edits fields of it, and the server judges it while it is written. */
export function useSpec(start: string): SpecState {
  const [text, setText] = useState(start);
  const [settled] = useDebouncedValue(text, TYPING_PAUSE_MS);
  const parsed = useMemo(() => parseSpec(text), [text]);
  const judged = useMemo(() => parseSpec(settled).spec, [settled]);

  const query = useQuery({
    queryKey: ["plan", judged],
    queryFn: ({ signal }) => planJob(judged ?? {}, signal),
    enabled: judged !== null,
    placeholderData: keepPreviousData,
    staleTime: 30_000,
  });
  // The resolved spec of the last text that was good: where the form looks up defaults while the author is mid-word.
  const [lastGood, setLastGood] = useState(query.data);
  if (query.data && query.data !== lastGood) setLastGood(query.data);
  const refusal = query.error instanceof Problem ? query.error : null;
  const fields = refusal?.fields ?? [];
  // What was said about an earlier text must not be shown at the places of a newer one.
  const current = settled === text && judged !== null;
  const problems = current && fields.length > 0 ? fields : NO_PROBLEMS;
  const plan = refusal === null && parsed.spec !== null ? query.data : undefined;
  const warnings = current && !query.isPlaceholderData ? plan?.warnings : undefined;

  const remarks = useMemo(
    () => [
      ...parsed.remarks,
      ...remarksFor(text, problems, "error"),
      ...remarksFor(text, warnings ?? NO_PROBLEMS, "warning"),
    ],
    [parsed, text, problems, warnings],
  );
  const change = useCallback((path: string[], value: Json | undefined) => {
    setText((before) => setField(before, path, value));
  }, []);

  return {
    text,
    setText,
    spec: parsed.spec,
    field: (path) => fieldAt(parsed.spec, path),
    change,
    plan,
    defaults: lastGood?.resolved_spec ?? null,
    planning: query.isFetching || settled !== text,
    failure: fields.length > 0 ? null : query.error,
    problems,
    remarks,
  };
}
