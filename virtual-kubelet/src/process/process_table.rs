//! The machine's processes as `/proc` shows them.

use std::collections::HashMap;

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessRow {
    /// Its number.
    pub pid: i32,
    /// Its parent's.
    pub parent: i32,
    /// Its session's.
    pub session: i32,
    /// Start in clock ticks since boot.
    pub start_ticks: u64,
    /// Processor time of its own, in clock ticks.
    pub cpu_ticks: u64,
    /// Processor time of children that it has reaped, in clock ticks.
    pub reaped_ticks: u64,
    /// Memory that is resident, in pages.
    pub resident_pages: u64,
    /// Memory that is mapped, in bytes.
    pub virtual_bytes: u64,
    /// Whether it has ended and was not reaped.
    pub zombie: bool,
}

/// Reads the text of `/proc/<pid>/stat`.
fn parse(pid: i32, stat: &str) -> Option<ProcessRow> {
    // The command's name may contain anything, so fields count from its closing parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    let signed = |index: usize| fields.get(index).and_then(|field| field.parse::<i64>().ok());
    let small = |index: usize| fields.get(index).and_then(|field| field.parse::<i32>().ok());
    let ticks = |index: usize| signed(index).and_then(|ticks| u64::try_from(ticks).ok());
    Some(ProcessRow {
        pid,
        parent: small(1)?,
        session: small(3)?,
        start_ticks: number(19)?,
        cpu_ticks: ticks(11)? + ticks(12)?,
        reaped_ticks: ticks(13)? + ticks(14)?,
        virtual_bytes: number(20)?,
        resident_pages: ticks(21)?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
    })
}

/// One process, if it exists.
pub fn look(pid: i32) -> Option<ProcessRow> {
    parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// All processes at about one moment.
#[derive(Clone, Debug, Default)]
pub struct ProcessTable {
    rows: HashMap<i32, ProcessRow>,
    children: HashMap<i32, Vec<i32>>,
}

impl ProcessTable {
    /// Reads `/proc`. Processes that end meanwhile are left out.
    pub fn read() -> Self {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        Self::of(pids.filter_map(look))
    }

    fn of(rows: impl Iterator<Item = ProcessRow>) -> Self {
        let mut table = Self::default();
        for row in rows {
            table.children.entry(row.parent).or_default().push(row.pid);
            table.rows.insert(row.pid, row);
        }
        table
    }

    /// A process.
    pub fn row(&self, pid: i32) -> Option<&ProcessRow> {
        self.rows.get(&pid)
    }

    /// Everything below `pid`, without itself.
    pub fn descendants(&self, pid: i32) -> Vec<ProcessRow> {
        let mut found: Vec<ProcessRow> = Vec::new();
        let mut open = vec![pid];
        while let Some(next) = open.pop() {
            for child in self.children.get(&next).into_iter().flatten() {
                if let Some(row) = self.rows.get(child).filter(|row| !found.iter().any(|known| known.pid == row.pid)) {
                    found.push(*row);
                    open.push(*child);
                }
            }
        }
        found
    }

    /// Everything of a session.
    pub fn session(&self, session: i32) -> Vec<ProcessRow> {
        self.rows.values().filter(|row| row.session == session).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "42 (a) b) c) S 7 42 41 0 -1 4194560 1 0 0 0 10 20 3 4 20 0 1 0 777 1000 10 18446744073709551615";

    #[test]
    fn fields_are_found_behind_a_name_with_spaces_and_parentheses() {
        let row = parse(42, STAT).unwrap();
        assert_eq!((row.parent, row.session, row.start_ticks), (7, 41, 777));
        assert_eq!((row.cpu_ticks, row.reaped_ticks, row.virtual_bytes, row.resident_pages), (30, 7, 1000, 10));
        assert_eq!(parse(42, "nonsense"), None);
    }

    #[test]
    fn descendants_are_found_through_every_generation_and_without_the_rest() {
        let base = parse(42, STAT).unwrap();
        let rows = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 1)].map(|(pid, parent)| ProcessRow { pid, parent, ..base });
        let mut found: Vec<i32> = ProcessTable::of(rows.into_iter()).descendants(2).iter().map(|row| row.pid).collect();
        found.sort_unstable();
        assert_eq!(found, [3, 4]);
    }

    #[test]
    fn this_process_is_in_its_own_table() {
        let own = i32::try_from(std::process::id()).unwrap();
        let table = ProcessTable::read();
        assert_eq!(table.row(own).map(|row| row.start_ticks), look(own).map(|row| row.start_ticks));
    }
}
