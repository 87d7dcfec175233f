import { ActionIcon, Menu, Text, useMantineColorScheme } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate } from "react-router";

import { signOut } from "@/api/session";
import type { Team, User } from "@/api/types";
import { CheckIcon, MoonIcon, SunIcon, SystemIcon, UserIcon } from "@/components/icons";

const SCHEMES = [
  { value: "light", name: "Light", Icon: SunIcon },
  { value: "dark", name: "Dark", Icon: MoonIcon },
  { value: "auto", name: "System", Icon: SystemIcon },
] as const;

export function AccountMenu({ user, teams }: { user: User; teams: Team[] }) {
  const { colorScheme, setColorScheme } = useMantineColorScheme();
  const client = useQueryClient();
  const navigate = useNavigate();
  const leave = useMutation({
    mutationFn: signOut,
    // Nothing of one user may be left for the next one at the same screen, whether or not the call got through.
    onSettled: () => {
      client.clear();
      void navigate("/sign-in", { replace: true });
    },
  });
  return (
    <Menu position="bottom-end" width={230}>
      <Menu.Target>
        <ActionIcon variant="default" size={34} radius="xl" aria-label={`Account of ${user.username}`}>
          <UserIcon />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label>
          <Text size="sm" fw={600} c="var(--ink)" truncate>
            {user.username}
          </Text>
          <Text size="xs" truncate>
            {teams.map((team) => `${team.name} (${team.role})`).join(", ") || "No team yet"}
          </Text>
        </Menu.Label>
        <Menu.Divider />
        <Menu.Label>Appearance</Menu.Label>
        {SCHEMES.map(({ value, name, Icon }) => (
          <Menu.Item
            key={value}
            role="menuitemradio"
            aria-checked={colorScheme === value}
            leftSection={<Icon size={16} />}
            rightSection={colorScheme === value ? <CheckIcon size={15} /> : null}
            closeMenuOnClick={false}
            onClick={() => setColorScheme(value)}
          >
            {name}
          </Menu.Item>
        ))}
        <Menu.Divider />
        <Menu.Item component={Link} to="/account">
          Password and sessions
        </Menu.Item>
        <Menu.Item component="a" href="/docs/">
          Documentation
        </Menu.Item>
        <Menu.Item component="a" href="/api/docs/">
          Try the API
        </Menu.Item>
        {user.is_staff || user.platform_role !== "none" ? (
          <Menu.Item component="a" href="/admin/">
            Administration
          </Menu.Item>
        ) : null}
        <Menu.Item onClick={() => leave.mutate()}>Sign out</Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}
