import { useQuery } from "@tanstack/react-query";

import { sessionQuery } from "@/api/session";
import { Notice } from "@/components/notice";
import { Page } from "@/components/page";
import { PasswordPanel } from "@/features/account/components/password-panel";
import { SecondFactorsPanels } from "@/features/account/components/second-factors-panels";
import { SignInsPanel } from "@/features/account/components/sign-ins-panel";

export function AccountPage() {
  const required = useQuery(sessionQuery()).data?.second_factor_setup_required ?? false;
  return (
    <Page title="Password and sessions" lead="How you sign in, and where you are signed in.">
      {required ? (
        <Notice tone="waiting" title="Set up a second factor to continue">
          This platform requires an authenticator app or a passkey for your account.
        </Notice>
      ) : null}
      <PasswordPanel />
      <SecondFactorsPanels />
      <SignInsPanel />
    </Page>
  );
}
