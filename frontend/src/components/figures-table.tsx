import { Table } from "@mantine/core";

/** A table of figures by name, one a row. */
export function FiguresTable({ label, rows }: { label: string; rows: [string, string][] }) {
  return (
    <Table aria-label={label}>
      <Table.Tbody>
        {rows.map(([name, text]) => (
          <Table.Tr key={name}>
            <Table.Th scope="row" fw={400}>
              {name}
            </Table.Th>
            <Table.Td ta="right" className="numeric">
              {text}
            </Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  );
}
