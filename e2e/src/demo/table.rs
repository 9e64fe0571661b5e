//! The load of both parts of the demo, and the table with what became of it.

use std::time::Duration;

use crate::load::{LoadOptions, Outcome, outage::Worst};

/// One column of the table at the end.
#[derive(Debug)]
pub(crate) struct Column {
    pub(super) name: &'static str,
    pub(super) rollouts: u32,
    pub(crate) outcome: Outcome,
    pub(super) worst: Worst,
    pub(super) kept: String,
}

/// The load of either part.
pub(super) fn load() -> LoadOptions {
    LoadOptions { at_most: Duration::from_mins(15), ..LoadOptions::full() }
}

/// Prints the columns side by side.
pub(super) fn print_table(columns: &[&Column]) {
    type Cell = fn(&Column) -> String;
    let rows: [(&str, Cell); 7] = [
        ("", |column| column.name.to_owned()),
        ("rollouts", |column| column.rollouts.to_string()),
        ("requests", |column| thousands(column.outcome.clients.requests)),
        ("failed", |column| thousands(column.outcome.failed())),
        ("failed of a million", |column| thousands(column.outcome.failed() * 1_000_000 / column.outcome.clients.requests.max(1))),
        ("longest time a node was out", |column| format!("{:.1} s", column.worst.longest.as_secs_f32())),
        ("budget kept", |column| column.kept.clone()),
    ];
    for (title, cell) in rows {
        print!("  {title:<30}");
        for column in columns {
            print!("{:>24}", cell(column));
        }
        println!();
    }
    println!();
}

/// `1234567` as `1,234,567`.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::thousands;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
    }
}
