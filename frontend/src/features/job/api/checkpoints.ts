import { request } from "@/api/client";
import type { ActedCheckpoint } from "@/api/types";

export type CheckpointAct = "mark_damaged" | "mark_intact" | "retire";

export function actOnCheckpoint(id: string, act: CheckpointAct, reason: string): Promise<ActedCheckpoint> {
  return request<ActedCheckpoint>(`/checkpoints/${encodeURIComponent(id)}:${act}`, { method: "POST", json: { reason } });
}
