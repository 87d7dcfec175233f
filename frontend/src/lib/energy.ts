import type { Energy } from "@/api/types";
import { duration } from "@/lib/format";

export const NOT_KNOWN = "Not known";

const decimals = (value: number) => value.toLocaleString("en-GB", { maximumFractionDigits: 3 });

/** The energy that is known, how it is known, and the slot time of which it is not. */
export function energyText(energy: Energy): string {
  if (energy.kwh === null) return NOT_KNOWN;
  const text = `${decimals(energy.kwh)} kWh, ${energy.source}`;
  return energy.unknown_slot_seconds > 0 ? `${text}, without ${duration(energy.unknown_slot_seconds)} not known` : text;
}

/** The CO2 of the energy that is known, and of which slot time if not of all. */
export function carbonText(energy: Energy): string {
  if (energy.carbon_grams === null) return NOT_KNOWN;
  const slotSeconds = energy.measured_slot_seconds + energy.estimated_slot_seconds + energy.unknown_slot_seconds;
  const text = `${decimals(energy.carbon_grams / 1000)} kg`;
  return energy.carbon_slot_seconds < slotSeconds ? `${text}, of ${duration(energy.carbon_slot_seconds)} slot time` : text;
}
