import { ActionIcon, CopyButton as MantineCopyButton, Tooltip } from "@mantine/core";

import { CheckIcon, CopyIcon } from "@/components/icons";

export function CopyButton({ value, label }: { value: string; label: string }) {
  return (
    <MantineCopyButton value={value} timeout={1500}>
      {({ copied, copy }) => (
        <Tooltip label={copied ? "Copied" : label} openDelay={300}>
          <ActionIcon
            variant="subtle"
            color={copied ? "teal" : "gray"}
            size="sm"
            onClick={copy}
            aria-label={label}
          >
            {copied ? <CheckIcon size={15} /> : <CopyIcon size={15} />}
          </ActionIcon>
        </Tooltip>
      )}
    </MantineCopyButton>
  );
}
