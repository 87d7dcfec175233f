import type { ReactNode } from "react";

import classes from "./data-table.module.css";

export interface Column<T> {
  /** Heading. In parentheses: for screen readers only. */
  name: string;
  /** Align numbers and buttons to the right. */
  end?: boolean;
  quiet?: boolean;
  cell: (row: T) => ReactNode;
}

interface DataTableProps<T> {
  label: string;
  rows: T[];
  columns: Column<T>[];
  rowKey: (row: T) => string;
}

export function DataTable<T>({ label, rows, columns, rowKey }: DataTableProps<T>) {
  const classesOf = (column: Column<T>) =>
    [column.end ? classes.end : "", column.quiet ? classes.quiet : ""].join(" ");
  return (
    <table className={classes.table} aria-label={label}>
      <thead>
        <tr>
          {columns.map((column) => (
            <th key={column.name} scope="col" className={classesOf(column)}>
              {column.name.startsWith("(") ? <span className="visually-hidden">{column.name}</span> : column.name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <tr key={rowKey(row)}>
            {columns.map((column) => (
              <td
                key={column.name}
                className={classesOf(column)}
                data-label={column.name.startsWith("(") ? "" : column.name}
              >
                <span>{column.cell(row)}</span>
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
