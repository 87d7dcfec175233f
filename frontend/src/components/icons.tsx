import type { ReactNode, SVGProps } from "react";

/** Drawn on a 24 grid with one stroke; decorative always, since the control beside it carries the name. */
function icon(paths: ReactNode) {
  return function Icon({ size = 18, ...rest }: SVGProps<SVGSVGElement> & { size?: number }) {
    return (
      <svg
        width={size}
        height={size}
        viewBox="0 0 24 24"
        fill="none"
        stroke="currentColor"
        strokeWidth={1.8}
        strokeLinecap="round"
        strokeLinejoin="round"
        aria-hidden="true"
        focusable="false"
        {...rest}
      >
        {paths}
      </svg>
    );
  };
}

export const CheckIcon = icon(<path d="m5 12.5 4.5 4.5L19 7.5" />);
export const CrossIcon = icon(<path d="M6.5 6.5 17.5 17.5M17.5 6.5 6.5 17.5" />);
export const PlusIcon = icon(<path d="M12 5v14M5 12h14" />);
export const SearchIcon = icon(
  <>
    <circle cx="11" cy="11" r="6.5" />
    <path d="m16 16 4 4" />
  </>,
);
export const SunIcon = icon(
  <>
    <circle cx="12" cy="12" r="4" />
    <path d="M12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M18.7 5.3l-1.4 1.4M6.7 17.3l-1.4 1.4" />
  </>,
);
export const MoonIcon = icon(<path d="M20 14.5A8 8 0 0 1 9.5 4a8 8 0 1 0 10.5 10.5Z" />);
export const SystemIcon = icon(
  <>
    <rect x="3.5" y="4.5" width="17" height="12" rx="2" />
    <path d="M9 20h6M12 16.5V20" />
  </>,
);
export const UserIcon = icon(
  <>
    <circle cx="12" cy="8.5" r="3.5" />
    <path d="M5 20c.6-3.7 3.4-5.5 7-5.5s6.4 1.8 7 5.5" />
  </>,
);
export const DownloadIcon = icon(<path d="M12 4v11M7 10.5l5 5 5-5M5 20h14" />);
export const UploadIcon = icon(<path d="M12 16V5M7 9.5l5-5 5 5M5 20h14" />);
export const CopyIcon = icon(
  <>
    <rect x="8.5" y="8.5" width="11" height="11" rx="2" />
    <path d="M15.5 8.5v-2a2 2 0 0 0-2-2h-7a2 2 0 0 0-2 2v7a2 2 0 0 0 2 2h2" />
  </>,
);
export const ForkIcon = icon(
  <>
    <circle cx="7" cy="5.5" r="2" />
    <circle cx="17" cy="5.5" r="2" />
    <circle cx="12" cy="18.5" r="2" />
    <path d="M7 7.5v1.5a3 3 0 0 0 3 3h4a3 3 0 0 0 3-3V7.5M12 12v4.5" />
  </>,
);
export const StopIcon = icon(<rect x="6.5" y="6.5" width="11" height="11" rx="1.5" />);
export const WarningIcon = icon(<path d="M12 9.5v4M12 16.8v.01M12 4 2.8 19.5h18.4Z" />);
export const ChevronIcon = icon(<path d="m9 6 6 6-6 6" />);
export const ClockIcon = icon(
  <>
    <circle cx="12" cy="12" r="8.5" />
    <path d="M12 7.5V12l3 2" />
  </>,
);
export const BoxIcon = icon(<path d="m12 3 8 4.5v9L12 21l-8-4.5v-9ZM4.3 7.6 12 12l7.7-4.4M12 12v9" />);
export const TrashIcon = icon(<path d="M4.5 7h15M9.5 7V4.5h5V7M6.5 7l1 13h9l1-13" />);

/** The mark: alchemy's sign of fire with a flame inside it. */
export function FurnaceMark({ size = 26 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <path
        d="M16 4.5 28.5 27H3.5Z"
        fill="none"
        stroke="var(--accent)"
        strokeWidth="2.6"
        strokeLinejoin="round"
      />
      <path
        d="M16 24.2c-2.7 0-4.4-1.8-4.4-4 0-2.9 2.8-4 3.5-7.1 2.8 1.6 5.3 4.2 5.3 7.1 0 2.2-1.7 4-4.4 4Z"
        fill="var(--accent)"
      />
    </svg>
  );
}
