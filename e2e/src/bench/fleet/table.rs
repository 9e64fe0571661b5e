//! The tables and the verdict, as text. No input or output.

use std::{collections::BTreeMap, fmt::Write as _};

use serde_json::{Value, json};

use super::figures::{Contender, Goal, Run, Size, Spread, What};

/// The runs of all contenders with one size.
#[derive(Debug)]
pub struct Table {
    /// The size.
    pub size: Size,
    /// The runs.
    pub runs: BTreeMap<Contender, Vec<Run>>,
}

/// A goal, and whether it is met.
#[derive(Debug)]
struct Verdict {
    /// As it is printed.
    goal: String,
    /// The figure that counts.
    value: f64,
    /// What it may be.
    most: f64,
    /// What it is instead, where it is missed.
    missed: Option<String>,
}

impl Verdict {
    fn text(&self) -> String {
        self.missed.as_ref().map_or_else(|| "met".to_owned(), |missed| format!("MISSED: {missed}"))
    }

    fn json(&self) -> Value {
        let Self { goal, value, most, missed } = self;
        json!({ "goal": goal, "value": value, "most": most, "met": missed.is_none(), "missedBy": (value - most).max(0.0) })
    }
}

impl Table {
    fn spread(&self, what: What, contender: Contender) -> Option<Spread> {
        Spread::of(self.runs.get(&contender)?.iter().filter_map(|run| run.get(&what).copied()).collect())
    }

    fn rows(&self) -> Vec<What> {
        let mut rows: Vec<_> = self.runs.values().flatten().flat_map(BTreeMap::keys).copied().collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// The goals of a row. A goal beside a yardstick that was not measured is no goal of this run.
    fn verdicts(&self, what: What) -> Vec<Verdict> {
        let Some(ours) = self.spread(what, Contender::Ours) else { return Vec::new() };
        what.goals()
            .iter()
            .filter_map(|goal| {
                let (shown, most, of) = match goal {
                    Goal::AtMost(most) => (format!("≤ {most}"), *most, String::new()),
                    Goal::Times(factor, yardstick) => {
                        let median = self.spread(what, *yardstick)?.median;
                        (format!("≤ {factor} × {}", yardstick.name()), factor * median, format!(" × {}", yardstick.name()))
                    }
                };
                // Of what must not happen at all, one run is one too many.
                let value = if most > 0.0 { ours.median } else { ours.most };
                let missed = (value > most).then(|| match goal {
                    Goal::Times(factor, _) if most > 0.0 => format!("{:.2}{of} instead of {factor}", value / most * factor),
                    _ => format!("{} instead of {most}", number(value)),
                });
                Some(Verdict { goal: shown, value, most, missed })
            })
            .collect()
    }

    /// The table.
    pub fn text(&self) -> String {
        let runs = self.runs.values().map(Vec::len).max().unwrap_or_default();
        let title = format!("fleet of {} nodes, runs: {runs}", self.size.nodes);
        let columns = Contender::ALL.map(|contender| format!("{:<28}", format!("{} (min median max)", contender.name())));
        let mut text = format!("\n{title:<48} {:<32} {}\n", "goal", columns.join(" "));
        for what in self.rows() {
            let verdicts = self.verdicts(what);
            let goals: Vec<_> = verdicts.iter().map(|verdict| verdict.goal.as_str()).collect();
            let met: Vec<_> = verdicts.iter().map(Verdict::text).collect();
            let cells = Contender::ALL.map(|contender| format!("{:<28}", cell(self.spread(what, contender))));
            let row = format!("{:<48} {:<32} {} {}", what.title(self.size), goals.join(", "), cells.join(" "), met.join(", "));
            let _ = writeln!(text, "{}", row.trim_end());
        }
        text
    }

    /// All figures, for comparison with other runs.
    pub fn json(&self) -> Value {
        let rows = self.rows().into_iter().map(|what| {
            let of = |contender: &Contender| self.runs[contender].iter().filter_map(|run| run.get(&what)).copied().collect::<Vec<_>>();
            let figures: BTreeMap<_, _> = self.runs.keys().map(|contender| (contender.name(), of(contender))).collect();
            let spreads: BTreeMap<_, _> = self
                .runs
                .keys()
                .filter_map(|contender| {
                    let Spread { least, median, most } = self.spread(what, *contender)?;
                    Some((contender.name(), json!({ "min": least, "median": median, "max": most })))
                })
                .collect();
            let goals: Vec<_> = self.verdicts(what).iter().map(Verdict::json).collect();
            json!({ "what": what.title(self.size), "figures": figures, "spreads": spreads, "goals": goals })
        });
        json!({ "nodes": self.size.nodes, "pods": self.size.pods, "rows": rows.collect::<Vec<_>>() })
    }
}

/// The last line: which goals are met, and by how much the others are missed.
pub fn verdict(tables: &[Table]) -> String {
    let mut all = 0;
    let mut missed = Vec::new();
    for table in tables {
        for what in table.rows() {
            for verdict in table.verdicts(what) {
                all += 1;
                missed.extend(verdict.missed.map(|miss| format!("{} ({miss})", what.title(table.size))));
            }
        }
    }
    match (all, missed.as_slice()) {
        (0, _) => "no goal was measured".to_owned(),
        (all, []) => format!("all {all} goals are met"),
        (all, missed) => format!("{} of {all} goals are met; missed: {}", all - missed.len(), missed.join("; ")),
    }
}

/// What was promised not to happen at all, and did.
pub fn broken(tables: &[Table]) -> Vec<String> {
    let broken = |table: &Table| {
        let is_promise = |what: &What| matches!(what.goals(), [Goal::AtMost(most)] if *most <= 0.0);
        let is_broken = |what: &What| table.spread(*what, Contender::Ours).is_some_and(|ours| ours.most > 0.0);
        let broken = table.rows().into_iter().filter(|what| is_promise(what) && is_broken(what));
        broken.map(|what| what.title(table.size)).collect::<Vec<_>>()
    };
    tables.iter().flat_map(broken).collect()
}

fn cell(spread: Option<Spread>) -> String {
    let Some(Spread { least, median, most }) = spread else { return "-".to_owned() };
    format!("{:>8} {:>8} {:>8}", number(least), number(median), number(most))
}

/// Three digits that say something.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || size.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::figures::Phase, *};

    const TIME: What = What::Time(Phase::Nodes);

    fn table(figures: &[(Contender, What, &[f64])]) -> Table {
        let mut runs: BTreeMap<Contender, Vec<Run>> = BTreeMap::new();
        for (contender, what, values) in figures {
            let of = runs.entry(*contender).or_default();
            of.resize(of.len().max(values.len()), Run::new());
            for (run, value) in of.iter_mut().zip(*values) {
                run.insert(*what, *value);
            }
        }
        Table { size: Size { nodes: 5, pods: 10, memory_pods: 50, events: 1000 }, runs }
    }

    #[test]
    fn a_goal_is_compared_by_the_medians() {
        let table = table(&[(Contender::Ours, TIME, &[1.0, 1.1, 9.0]), (Contender::Limit, TIME, &[1.0, 1.0, 1.0])]);
        assert_eq!(verdict(&[table]), "all 1 goals are met");
    }

    #[test]
    fn a_goal_that_is_missed_says_by_how_much() {
        let table = table(&[(Contender::Ours, TIME, &[1.0]), (Contender::Limit, TIME, &[1.0]), (Contender::Kwok, TIME, &[1.25])]);
        assert_eq!(verdict(&[table]), "1 of 2 goals are met; missed: 5 nodes to Ready, s (0.80 × kwok instead of 0.7)");
    }

    #[test]
    fn a_yardstick_that_was_not_measured_has_no_goal() {
        let table = table(&[(Contender::Ours, TIME, &[1.0])]);
        assert_eq!(verdict(&[table]), "no goal was measured");
    }

    #[test]
    fn one_node_lost_in_one_run_misses_the_goal() {
        let tables = [table(&[(Contender::Ours, What::NotReady, &[0.0, 0.0, 1.0])])];
        assert_eq!(verdict(&tables), "0 of 1 goals are met; missed: nodes NotReady in the run (1 instead of 0)");
        assert_eq!(broken(&tables), ["nodes NotReady in the run"]);
    }

    #[test]
    fn nodes_that_a_yardstick_loses_are_not_ours() {
        let tables = [table(&[(Contender::Ours, What::NotReady, &[0.0]), (Contender::Kwok, What::NotReady, &[7.0])])];
        assert_eq!(broken(&tables), Vec::<String>::new());
    }

    #[test]
    fn a_row_shows_minimum_median_maximum_or_a_dash() {
        let table = table(&[(Contender::Ours, TIME, &[3.0, 1.5, 200.4]), (Contender::Kwok, TIME, &[0.25])]);
        let text = table.text();
        let row = text.lines().find(|line| line.starts_with("5 nodes to Ready")).unwrap();
        let words: Vec<_> = row.split_whitespace().collect();
        assert_eq!(
            words[5..],
            [
                "≤", "0.7", "×", "kwok", "1.50", "3", "200", "-", "0.250", "0.250", "0.250", "MISSED:", "12.00", "×", "kwok", "instead",
                "of", "0.7"
            ]
        );
    }

    #[test]
    fn json_tells_by_how_much_each_goal_is_missed() {
        let table = table(&[(Contender::Ours, TIME, &[3.0]), (Contender::Limit, TIME, &[4.0]), (Contender::Kwok, TIME, &[2.0])]);
        let goals = &table.json()["rows"][0]["goals"];
        assert_eq!((&goals[0]["met"], &goals[0]["missedBy"]), (&json!(true), &json!(0.0)));
        assert_eq!((&goals[1]["met"], &goals[1]["value"], &goals[1]["goal"]), (&json!(false), &json!(3.0), &json!("≤ 0.7 × kwok")));
        assert!((goals[1]["missedBy"].as_f64().unwrap() - 1.6).abs() < 1e-9);
        assert_eq!(table.json()["rows"][0]["spreads"]["kwok"], json!({ "min": 2.0, "median": 2.0, "max": 2.0 }));
    }

    #[test]
    fn lost_nodes_count_only_after_a_short_stand_still() {
        let tables = [table(&[
            (Contender::Ours, What::LostInStall(20), &[1.0]),
            (Contender::Ours, What::LostInStall(60), &[5.0]),
            (Contender::Ours, What::NotReadyAfterStall(60), &[0.0]),
        ])];
        assert_eq!(broken(&tables), ["nodes called NotReady, stand-still of 20 s"]);
    }
}
