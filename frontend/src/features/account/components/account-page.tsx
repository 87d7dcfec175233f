import { Page } from "@/components/page";
import { PasswordPanel } from "@/features/account/components/password-panel";
import { SecondFactorsPanels } from "@/features/account/components/second-factors-panels";
import { SignInsPanel } from "@/features/account/components/sign-ins-panel";

export function AccountPage() {
  return (
    <Page title="Password and sessions" lead="How you sign in, and where you are signed in.">
      <PasswordPanel />
      <SecondFactorsPanels />
      <SignInsPanel />
    </Page>
  );
}
