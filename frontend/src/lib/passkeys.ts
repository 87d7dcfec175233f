/** WebAuthn's options and answers as JSON: what is binary is base64url without padding. */
export interface PasskeyOptions {
  publicKey: Record<string, unknown>;
}
export type PasskeyJson = Record<string, unknown>;

interface Descriptor {
  id: string;
  type: "public-key";
}

export function encodeBase64Url(data: ArrayBuffer): string {
  let text = "";
  for (const byte of new Uint8Array(data)) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export function decodeBase64Url(text: string): ArrayBuffer {
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(binary, (character) => character.charCodeAt(0)).buffer;
}

function decodeDescriptors(list: unknown): PublicKeyCredentialDescriptor[] {
  return ((list ?? []) as Descriptor[]).map(({ id, type }) => ({ type, id: decodeBase64Url(id) }));
}

/** Asks the browser for a new passkey. */
export async function createPasskey({ publicKey }: PasskeyOptions): Promise<PasskeyJson> {
  const user = publicKey.user as { id: string; name: string; displayName: string };
  const options = {
    ...publicKey,
    challenge: decodeBase64Url(publicKey.challenge as string),
    user: { ...user, id: decodeBase64Url(user.id) },
    excludeCredentials: decodeDescriptors(publicKey.excludeCredentials),
  } as unknown as PublicKeyCredentialCreationOptions;
  const credential = await ask(() => navigator.credentials.create({ publicKey: options }));
  const response = credential.response as AuthenticatorAttestationResponse;
  return asJson(credential, {
    clientDataJSON: encodeBase64Url(response.clientDataJSON),
    attestationObject: encodeBase64Url(response.attestationObject),
  });
}

/** Asks the browser to sign the challenge with a passkey that it has. */
export async function getPasskey({ publicKey }: PasskeyOptions): Promise<PasskeyJson> {
  const options = {
    ...publicKey,
    challenge: decodeBase64Url(publicKey.challenge as string),
    allowCredentials: decodeDescriptors(publicKey.allowCredentials),
  } as unknown as PublicKeyCredentialRequestOptions;
  const credential = await ask(() => navigator.credentials.get({ publicKey: options }));
  const response = credential.response as AuthenticatorAssertionResponse;
  return asJson(credential, {
    clientDataJSON: encodeBase64Url(response.clientDataJSON),
    authenticatorData: encodeBase64Url(response.authenticatorData),
    signature: encodeBase64Url(response.signature),
  });
}

async function ask(prompt: () => Promise<Credential | null>): Promise<PublicKeyCredential> {
  // Browsers hide it on addresses that are not secure, whatever the types say.
  if (!("PublicKeyCredential" in window)) throw new Error("This browser has no passkeys at this address.");
  let credential: Credential | null;
  try {
    credential = await prompt();
  } catch (error) {
    throw new Error(reason(error), { cause: error });
  }
  if (credential === null) throw new Error("The browser returned no passkey.");
  return credential as PublicKeyCredential;
}

function reason(error: unknown): string {
  const name = error instanceof DOMException ? error.name : "";
  if (name === "InvalidStateError") return "This device is registered already.";
  if (name === "SecurityError") return "Open the dashboard at its public address to use passkeys.";
  return "The passkey request was cancelled or timed out. Try again.";
}

function asJson(credential: PublicKeyCredential, response: Record<string, string>): PasskeyJson {
  return {
    id: credential.id,
    rawId: encodeBase64Url(credential.rawId),
    type: credential.type,
    response,
    clientExtensionResults: {},
  };
}
