import { Page } from "@/components/page";
import { PasswordPanel } from "@/features/account/components/password-panel";
import { SignInsPanel } from "@/features/account/components/sign-ins-panel";

export function AccountPage() {
  return (
    <Page title="Password and sessions" lead="How you sign in, and where you are signed in.">
      <PasswordPanel />
      <SignInsPanel />
    </Page>
  );
}
