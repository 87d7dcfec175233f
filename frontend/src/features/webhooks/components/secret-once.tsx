import { ShownOnce } from "@/components/shown-once";

export function SecretOnce({ secret, onDone }: { secret: string; onDone: () => void }) {
  return (
    <ShownOnce secret={secret} onDone={onDone}>
      It is shown once. Every delivery carries <code>Athanor-Signature: t=TIME,v1=HEX</code>: an HMAC-SHA256 with
      it over <code>TIME.BODY</code>.
    </ShownOnce>
  );
}
