import { Badge, Button } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router";

import { unreadQuery } from "@/features/alerts/api/alerts";

/** The link to the inbox in the header, with the number of unread notifications. */
export function InboxLink() {
  const unread = useQuery(unreadQuery()).data?.unread ?? 0;
  return (
    <Button
      component={Link}
      to="/alerts"
      variant="subtle"
      size="compact-md"
      aria-label={unread > 0 ? `Inbox, ${unread} unread` : "Inbox"}
      rightSection={unread > 0 ? <Badge size="sm">{unread > 99 ? "99+" : unread}</Badge> : null}
    >
      Inbox
    </Button>
  );
}
