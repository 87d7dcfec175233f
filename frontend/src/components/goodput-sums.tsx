import type { Goodput, GoodputStatement } from "@/api/types";
import times from "@/components/time-table.module.css";
import { ACTIVITIES, comparePhases, phaseName } from "@/lib/activities";
import { duration, money, percent } from "@/lib/format";

import classes from "./goodput-sums.module.css";

type Category = Goodput["categories"][number];
type StatementSums = GoodputStatement["items"][number];

/** What slots were held for: `uncounted` of a statement is not divided yet. */
type Sums = Pick<Goodput, "currency" | "slot_seconds" | "goodput" | "cost" | "charged" | "refunded" | "categories"> &
  Partial<Pick<StatementSums, "uncounted">>;

const NOT_DIVIDED = "Not divided yet";

/** The productive share, a bar of the activities, and a table of them with their cost. */
export function GoodputSums({ sums }: { sums: Sums }) {
  const cost = (micro: number) => money(micro / 1e6, sums.currency);
  return (
    <>
      <p className={classes.summary}>
        <strong>{percent(sums.goodput)}</strong> of the slot time was productive. {cost(sums.charged)} charged,{" "}
        {cost(sums.refunded)} refunded.
      </p>
      <div className={classes.bar} role="img" aria-label={sums.categories.map(inWords).join(", ")}>
        {sums.categories.map((each) => (
          <span
            key={each.activity}
            title={inWords(each)}
            style={{ width: `${each.share * 100}%`, background: `var(${ACTIVITIES[each.activity].color})` }}
          />
        ))}
      </div>
      <Categories sums={sums} />
    </>
  );
}

function inWords({ activity, share }: Category): string {
  return `${ACTIVITIES[activity].name}: ${percent(share)}`;
}

const amount = (micro: number) => money(micro / 1e6, "");

function Categories({ sums }: { sums: Sums }) {
  const rest = sums.uncounted;
  return (
    <table className={`${times.table} ${classes.sums}`} aria-label="Slot time by activity">
      <thead>
        <tr>
          <th scope="col">Activity</th>
          <th scope="col">Slot time</th>
          <th scope="col">Share</th>
          <th scope="col">Cost, {sums.currency}</th>
        </tr>
      </thead>
      <tbody>
        {sums.categories.map((each) => (
          <CategoryRows key={each.activity} category={each} />
        ))}
        {rest && (rest.slot_seconds > 0 || rest.cost > 0) ? (
          <tr>
            <th scope="row">{NOT_DIVIDED}</th>
            <td>{duration(rest.slot_seconds)}</td>
            <td />
            <td>{amount(rest.cost)}</td>
          </tr>
        ) : null}
      </tbody>
      <tfoot>
        <tr>
          <th scope="row">Total</th>
          <td>{duration(sums.slot_seconds)}</td>
          <td />
          <td>{amount(sums.cost)}</td>
        </tr>
      </tfoot>
    </table>
  );
}

function CategoryRows({ category }: { category: Category }) {
  const { name, color } = ACTIVITIES[category.activity];
  const phases = [...category.phases].sort((a, b) => comparePhases(a.phase, b.phase));
  return (
    <>
      <tr>
        <th scope="row">
          <span className={times.swatch} style={{ background: `var(${color})` }} />
          {name}
        </th>
        <td>{duration(category.slot_seconds)}</td>
        <td>{percent(category.share)}</td>
        <td>{amount(category.cost)}</td>
      </tr>
      {phases.map((each) => (
        <tr key={each.phase} data-detail>
          <th scope="row">{phaseName(each.phase)}</th>
          <td>{duration(each.slot_seconds)}</td>
          <td />
          <td>{amount(each.cost)}</td>
        </tr>
      ))}
    </>
  );
}
