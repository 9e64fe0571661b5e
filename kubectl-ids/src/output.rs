//! Text for people: tables, colours where a terminal shows them, times as ages.

use crds::UnixSeconds;
use std::{
    fmt::Write as _,
    io::{IsTerminal as _, Write as _},
};

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets::NOTHING};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// How text is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// With colours.
    pub colour: bool,
    /// Columns and lines of the terminal; nothing where there is none: then no line is cut or broken.
    pub size: Option<(u16, u16)>,
}

impl Style {
    /// What suits standard output. <https://no-color.org>: set and not empty means none.
    pub fn of_stdout(no_color: bool) -> Self {
        let stdout = std::io::stdout();
        let plain = no_color || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = stdout.is_terminal();
        let size = size(&stdout).filter(|(columns, _)| terminal && *columns > 0);
        Self { colour: terminal && !plain && !dumb, size }
    }

    /// A word in the colour of its meaning.
    pub fn paint(self, word: &str, tone: Tone) -> String {
        match tone.begin().filter(|_| self.colour) {
            Some(begin) => format!("{begin}{word}{END}"),
            None => word.to_owned(),
        }
    }
}

/// Columns and lines of a terminal.
#[cfg(unix)]
fn size(terminal: &std::io::Stdout) -> Option<(u16, u16)> {
    rustix::termios::tcgetwinsize(terminal).ok().map(|size| (size.ws_col, size.ws_row))
}

/// Windows has no such call: no line is cut there.
#[cfg(not(unix))]
const fn size(_: &std::io::Stdout) -> Option<(u16, u16)> {
    None
}

/// What a colour says; every one is said by a word, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Nothing.
    Plain,
    /// As it should be.
    Good,
    /// Something goes on.
    Busy,
    /// It waits.
    Waiting,
    /// Somebody should look.
    Bad,
}

/// Ends every colour.
const END: &str = "\x1b[0m";

impl Tone {
    const ALL: [Self; 5] = [Self::Plain, Self::Good, Self::Busy, Self::Waiting, Self::Bad];

    /// What a terminal begins its colour by.
    fn begin(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Good => Some("\x1b[32m"),
            Self::Busy => Some("\x1b[36m"),
            Self::Waiting => Some("\x1b[33m"),
            Self::Bad => Some("\x1b[31m"),
        }
    }
}

/// The tone of a node's phase.
pub fn tone_of(phase: &str) -> Tone {
    match phase {
        "Blocked" | "Unavailable" | "Failed" => Tone::Bad,
        "Waiting" => Tone::Waiting,
        "Idle" | "UpToDate" => Tone::Good,
        _ => Tone::Busy,
    }
}

/// A column whose words have tones, and which.
pub type Toned = (usize, fn(&str) -> Tone);

/// Rows below a header, as wide as the terminal at most; words of the column `toned` are coloured.
pub fn table(style: Style, header: &[&str], rows: Vec<Vec<String>>, toned: Option<Toned>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(header.iter().copied());
    match style.size {
        Some((columns, _)) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns.saturating_sub(1)),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.add_rows(rows.into_iter().map(|row| row.iter().map(|cell| in_one_line(cell)).collect::<Vec<_>>()));
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    let at = toned.and_then(|(column, tone)| Some((lines.first()?.find(header.get(column)?)?, tone)));
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let painted = at.filter(|_| number > 0).and_then(|(at, tone)| paint_at(style, line, at, tone));
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{}", painted.as_deref().unwrap_or(line));
    }
    text
}

/// The line with the word at this column of the terminal painted.
fn paint_at(style: Style, line: &str, at: usize, tone: fn(&str) -> Tone) -> Option<String> {
    let (before, rest) = line.char_indices().map(|(index, _)| line.split_at(index)).find(|(before, _)| before.width() == at)?;
    let word = rest.split_whitespace().next().filter(|word| rest.starts_with(word))?;
    Some(format!("{before}{}{}", style.paint(word, tone(word)), rest.strip_prefix(word)?))
}

/// A bar of `width` characters, readable without colours.
pub fn bar(done: u32, of: u32, width: usize) -> String {
    let filled = if of == 0 { 0 } else { width * usize::try_from(done.min(of)).unwrap_or(0) / usize::try_from(of).unwrap_or(1) };
    format!("[{}{}]", "#".repeat(filled), "-".repeat(width - filled))
}

/// Seconds as people say them: 42s, 3m20s, 2h5m, 3d4h.
pub fn span(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let two = |big: i64, unit: &str, small: i64, part: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{part}") }
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, "m", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// How long ago an RFC 3339 time was; `None` where it is none.
pub fn age(time: &str, now: UnixSeconds) -> Option<String> {
    let time = chrono::DateTime::parse_from_rfc3339(time).ok()?;
    Some(span(now.saturating_sub(time.timestamp())))
}

/// What stands for a character that a terminal would obey, or by which text would be read in another order.
const REPLACED: char = '\u{fffd}';

/// Without characters that a terminal obeys: names, conditions and answers of servers come from whoever may write them. Lines, and the
/// colours that this program writes itself, stay.
pub fn harmless(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let colour = Tone::ALL.into_iter().filter_map(Tone::begin).chain([END]).find(|colour| rest.starts_with(colour));
        let taken = colour.map_or(character.len_utf8(), str::len);
        match colour {
            Some(colour) => kept.push_str(colour),
            None if is_obeyed(character) => kept.push(REPLACED),
            None => kept.push(character),
        }
        rest = rest.get(taken..).unwrap_or_default();
    }
    kept
}

fn is_obeyed(character: char) -> bool {
    let turns = matches!(character, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || character.is_control() && !matches!(character, '\n' | '\t')
}

/// Of something that is one cell, or a part of a line: in one line, and as wide as its characters.
pub fn in_one_line(text: &str) -> String {
    let shown = |character| match character {
        '\t' => ' ',
        '\n' => REPLACED,
        _ if is_obeyed(character) => REPLACED,
        _ => character,
    };
    text.chars().map(shown).collect()
}

/// Prints text; a reader that has gone away, such as `head`, ends the program quietly.
pub fn print(text: &str) -> Result<()> {
    write(&harmless(text))
}

fn write(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

/// A remark beside the output.
pub fn remark(text: &str) {
    eprintln!("note: {}", in_one_line(text));
}

/// Several.
pub fn remarks(texts: &[String]) {
    for text in texts {
        remark(text);
    }
}

/// A block of lines that replaces itself on a terminal.
#[derive(Debug, Default)]
pub struct Screen {
    shown: Vec<String>,
}

impl Screen {
    /// Shows `text` in place of what was shown before.
    pub fn show(&mut self, text: &str, size: (u16, u16)) -> Result<()> {
        write(&self.replace(text, size))
    }

    /// The control characters and text that do so.
    ///
    /// Lines are cut to the terminal's width, and those at the end left out where its height does not suffice: else the cursor
    /// would not find the beginning again.
    fn replace(&mut self, text: &str, size: (u16, u16)) -> String {
        let (columns, rows) = (usize::from(size.0), usize::from(size.1.max(3)));
        let mut lines: Vec<String> = harmless(text).lines().map(|line| cut(line, columns)).collect();
        if lines.len() >= rows {
            let left = lines.len() - (rows - 2);
            lines.truncate(rows - 2);
            lines.push(format!("… {left} lines more"));
        }
        if lines == self.shown {
            return String::new();
        }
        let up = if self.shown.is_empty() { String::new() } else { format!("\x1b[{}A", self.shown.len()) };
        self.shown = lines;
        format!("{up}\r\x1b[J{}\n", self.shown.join("\n"))
    }
}

/// Most columns of a tab.
const TAB: usize = 8;

/// The first characters of a line; colours and accents take no room, some characters take two columns. Colours are ended.
fn cut(line: &str, columns: usize) -> String {
    let (mut width, mut escape, mut coloured) = (0, false, false);
    let mut kept = String::new();
    for character in line.chars() {
        match character {
            '\x1b' => (escape, coloured) = (true, true),
            'm' if escape => escape = false,
            _ if escape => {}
            _ => {
                let wide = if character == '\t' { TAB } else { character.width().unwrap_or(0) };
                if width + wide >= columns {
                    if coloured {
                        kept.push_str(END);
                    }
                    return kept;
                }
                width += wide;
            }
        }
        kept.push(character);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMINAL: Style = Style { colour: true, size: Some((40, 24)) };

    #[test]
    fn spans_have_two_units_at_most() {
        let spans: Vec<_> = [-1, 0, 59, 60, 200, 3600, 7500, 86_400, 273_600].map(span).into();
        assert_eq!(spans, ["0s", "0s", "59s", "1m", "3m20s", "1h", "2h5m", "1d", "3d4h"]);
    }

    #[test]
    fn foreign_text_neither_moves_the_cursor_nor_adds_lines() {
        let hostile = "a\x1b]0;title\x07b\x1b[2Jc\r\u{9b}31m\u{202e}d";
        assert_eq!(harmless(hostile), "a\u{fffd}]0;title\u{fffd}b\u{fffd}[2Jc\u{fffd}\u{fffd}31m\u{fffd}d");
        assert_eq!(harmless("\x1b[31mBlocked\x1b[0m\tä 世\n"), "\x1b[31mBlocked\x1b[0m\tä 世\n", "own colours and lines stay");
        let rows = vec![vec!["n1".into(), "Ready\nn2  Blocked\x1b[31m".into()]];
        let shown = table(Style::default(), &["NODE", "MESSAGE"], rows, None);
        assert_eq!(shown.lines().count(), 2, "{shown}");
        assert!(!shown.contains('\x1b'), "{shown}");
        let mut screen = Screen::default();
        assert!(!screen.replace(hostile, (80, 24)).contains("\x1b[2J"));
    }

    #[test]
    fn a_bar_is_full_only_when_all_is_done() {
        assert_eq!(
            [bar(0, 4, 8), bar(3, 4, 8), bar(999, 1000, 8), bar(4, 4, 8), bar(0, 0, 8)].join(" "),
            "[--------] [######--] [#######-] [########] [--------]"
        );
    }

    #[test]
    fn only_the_word_in_its_column_is_coloured() {
        let rows = || vec![vec!["n1".into(), "Blocked".into(), "Blocked is not a colour here".into()]];
        let tone: fn(&str) -> Tone = tone_of;
        let on_terminal = table(TERMINAL, &["NODE", "PHASE", "MESSAGE"], rows(), Some((1, tone)));
        assert!(on_terminal.contains("n1    \x1b[31mBlocked\x1b[0m  Blocked is"), "{on_terminal}");
        let piped = table(Style::default(), &["NODE", "PHASE", "MESSAGE"], rows(), Some((1, tone)));
        assert_eq!(piped, "NODE  PHASE    MESSAGE\nn1    Blocked  Blocked is not a colour here\n");
    }

    #[test]
    fn wide_characters_take_two_columns_in_tables_and_on_screens() {
        let rows = vec![
            vec!["世界".into(), "Blocked".into(), "Blocked".into()],
            vec!["n1".into(), "Idle".into(), "a\tb".into()],
            vec!["e\u{301}".into(), "Waiting".into(), String::new()],
        ];
        let shown = table(TERMINAL, &["NODE", "PHASE", "MESSAGE"], rows, Some((1, tone_of as fn(&str) -> Tone)));
        let lines: Vec<_> = shown.lines().collect();
        let wanted = [
            "NODE  PHASE    MESSAGE",
            "世界  \x1b[31mBlocked\x1b[0m  Blocked",
            "n1    \x1b[32mIdle\x1b[0m     a b",
            "e\u{301}     \x1b[33mWaiting\x1b[0m",
        ];
        assert_eq!(lines, wanted);
        assert_eq!(cut("世界世界", 8), "世界世", "the last column stays free, and no character is halved");
        assert_eq!(cut("世界", 5), "世界");
        assert_eq!(cut("e\u{301}e\u{301}x", 3), "e\u{301}e\u{301}", "an accent takes no column");
    }

    #[test]
    fn a_screen_goes_up_by_the_lines_it_has_shown() {
        let mut screen = Screen::default();
        assert_eq!(screen.replace("a\nb\n", (80, 24)), "\r\x1b[Ja\nb\n");
        assert_eq!(screen.replace("a\nb\n", (80, 24)), "", "nothing has changed");
        assert_eq!(screen.replace("a\nb\nc\nd\ne\n", (80, 5)), "\x1b[2A\r\x1b[Ja\nb\nc\n… 2 lines more\n");
    }

    #[test]
    fn a_line_that_is_cut_in_a_colour_ends_it() {
        assert_eq!(cut("ab\x1b[31mcdef\x1b[0m", 5), "ab\x1b[31mcd\x1b[0m");
        assert_eq!(cut("abc", 5), "abc");
    }
}
