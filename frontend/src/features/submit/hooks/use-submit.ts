import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useRef } from "react";
import { useNavigate } from "react-router";

import { jobKeys, submitJob } from "@/api/jobs";
import type { JsonObject } from "@/api/types";
import { uniqueKey } from "@/lib/unique-key";

/**
 * One key per content of the form: a double click, or another try after a lost answer, gives the same job,
 * while a corrected spec is a new request.
 */
export function useSubmit() {
  const client = useQueryClient();
  const navigate = useNavigate();
  const sent = useRef({ content: "", key: "" });
  return useMutation({
    mutationFn: (spec: JsonObject) => {
      const content = JSON.stringify(spec);
      if (sent.current.content !== content) sent.current = { content, key: uniqueKey() };
      return submitJob(spec, sent.current.key);
    },
    onSuccess: (job) => {
      client.setQueryData(jobKeys.detail(job.id), job);
      void client.invalidateQueries({ queryKey: jobKeys.lists });
      void navigate(`/jobs/${job.id}`);
    },
  });
}
