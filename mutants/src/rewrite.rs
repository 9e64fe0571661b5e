//! Puts faults into a source, each to be chosen by the variable `FAULT` when the program runs.

use crate::list::Fault;
use anyhow::{Result, bail};
use std::ops::Range;

/// Where a fault is, in bytes of the source.
type Place<'f> = (Range<usize>, &'f Fault);

/// The source with all these faults, none of which is chosen.
pub fn with_choices(source: &str, faults: &[&Fault]) -> Result<String> {
    let mut places = Vec::new();
    for fault in faults {
        if fault.original.trim_start().starts_with("let ") {
            bail!("{}: what follows would not see the variable: take what stands behind its `=`", fault.name);
        }
        places.push((place(source, fault)?, *fault));
    }
    // The outermost first, and those of one place in the order of the list.
    places.sort_by_key(|(range, _)| (range.start, std::cmp::Reverse(range.end)));
    render(source, 0..source.len(), &places)
}

/// The source with one fault, for good.
pub fn broken(source: &str, fault: &Fault) -> Result<String> {
    let Range { start, end } = place(source, fault)?;
    Ok(format!("{}{}{}", &source[..start], fault.broken.trim(), &source[end..]))
}

/// Where the fault is to be.
pub fn place(source: &str, fault: &Fault) -> Result<Range<usize>> {
    let around = match &fault.within {
        Some(within) => only(source, 0..source.len(), within, fault)?,
        None => 0..source.len(),
    };
    only(source, around, &fault.original, fault)
}

/// The one occurrence of a text in a part of the source, whatever white space is in both.
fn only(source: &str, part: Range<usize>, text: &str, fault: &Fault) -> Result<Range<usize>> {
    let solid: Vec<_> = source[part.clone()].char_indices().filter(|(_, char)| !char.is_whitespace()).collect();
    let wanted: Vec<_> = text.chars().filter(|char| !char.is_whitespace()).collect();
    if wanted.is_empty() {
        bail!("{}: the original is empty", fault.name);
    }
    let is_here = |found: &&[(usize, char)]| found.iter().map(|(_, char)| char).eq(&wanted);
    let mut found = solid.windows(wanted.len()).filter(is_here);
    match (found.next(), found.next()) {
        (Some([(first, _), .., (last, end)]), None) => Ok(part.start + first..part.start + last + end.len_utf8()),
        (Some([(first, char)]), None) => Ok(part.start + first..part.start + first + char.len_utf8()),
        (Some(_), _) => bail!("{}: the text is more than once in {}: {}", fault.name, fault.file, text.trim()),
        (None, _) => bail!("{}: the text is not in {}: {}", fault.name, fault.file, text.trim()),
    }
}

/// A part of the source with the faults that are in it.
fn render(source: &str, part: Range<usize>, places: &[Place<'_>]) -> Result<String> {
    let mut text = String::new();
    let mut at = part.start;
    let mut rest = places;
    while let Some(((outer, first), _)) = rest.split_first() {
        let same = rest.iter().take_while(|(range, _)| range == outer).count();
        let inside = rest[same..].iter().take_while(|(range, _)| range.start < outer.end).count();
        let (here, inner) = (&rest[..same], &rest[same..same + inside]);
        if let Some((_, crossing)) = inner.iter().find(|(range, _)| range.end > outer.end) {
            bail!("{} and {} overlap", first.name, crossing.name);
        }
        text.push_str(&source[at..outer.start]);
        let original = match inner {
            [] => source[outer.clone()].to_owned(),
            _ => render(source, outer.clone(), inner)?,
        };
        text.push_str(&choice(here, &original));
        at = outer.end;
        rest = &rest[same + inside..];
    }
    text.push_str(&source[at..part.end]);
    Ok(text)
}

/// An expression stays one whatever stands beside it; what ends as a statement does needs no parentheses, and may have none.
fn choice(here: &[Place<'_>], original: &str) -> String {
    let choices = here.iter().map(|(_, fault)| {
        let asked = format!("::std::env::var_os(\"FAULT\").is_some_and(|it| it == \"{}\")", fault.name);
        let on = format!("static ON: ::std::sync::LazyLock<bool> = ::std::sync::LazyLock::new(|| {asked}); *ON");
        // On one line, so that lines of messages are those of the source as far as that goes.
        format!("if {{ {on} }} {{ {} }} else ", fault.broken.trim())
    });
    let text = choices.chain([format!("{{ {original} }}")]).collect::<String>();
    if original.ends_with(';') || original.ends_with('}') { text } else { format!("({text})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: &str, original: &str, broken: &str) -> Fault {
        Fault {
            name: name.into(),
            file: "x.rs".into(),
            within: None,
            original: original.into(),
            broken: broken.into(),
            tests: Vec::new(),
            survives: None,
            build: false,
        }
    }

    /// Without the text that asks for the variable.
    fn short(text: &str) -> String {
        let mut short = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{ static ON") {
            short.push_str(before);
            let (_, after) = after.split_once("it == \"").unwrap();
            let (name, after) = after.split_once('"').unwrap();
            short.push_str(name);
            rest = after.split_once("*ON }").unwrap().1;
        }
        short + rest
    }

    fn rewritten(source: &str, faults: &[Fault]) -> String {
        short(&with_choices(source, &faults.iter().collect::<Vec<_>>()).unwrap())
    }

    #[test]
    fn an_expression_is_chosen_in_parentheses_and_a_statement_without() {
        assert_eq!(rewritten("let x = a < b;", &[fault("n", "a<b", "a <= b")]), "let x = (if n { a <= b } else { a < b });");
        assert_eq!(rewritten("a();\nb();", &[fault("n", "a();", "")]), "if n {  } else { a(); }\nb();");
    }

    #[test]
    fn overlapping_faults_can_each_be_chosen() {
        let one_place = [fault("n", "a", "b"), fault("m", "a", "c")];
        assert_eq!(rewritten("x = a;", &one_place), "x = (if n { b } else if m { c } else { a });");
        let nested = [fault("inner", "b", "c"), fault("outer", "f(b)", "d")];
        assert_eq!(rewritten("x = f(b);", &nested), "x = (if outer { d } else { f((if inner { c } else { b })) });");
    }

    #[test]
    fn what_overlaps_or_is_not_found_once_is_refused() {
        let said = |source: &str, faults: &[Fault]| with_choices(source, &faults.iter().collect::<Vec<_>>()).unwrap_err().to_string();
        assert_eq!(said("a + b + c", &[fault("n", "a + b", ""), fault("m", "b + c", "")]), "n and m overlap");
        assert_eq!(said("a + a", &[fault("n", "a", "b")]), "n: the text is more than once in x.rs: a");
        assert_eq!(said("a", &[fault("n", "b", "c")]), "n: the text is not in x.rs: b");
    }

    #[test]
    fn a_repeated_text_is_found_by_its_surrounding_text() {
        let place = Fault { within: Some("second(a)".into()), ..fault("n", "a", "b") };
        assert_eq!(rewritten("first(a); second( a )", &[place]), "first(a); second( (if n { b } else { a }) )");
    }

    #[test]
    fn a_fault_built_alone_replaces_the_original() {
        assert_eq!(broken("const N: u32 = 5;", &fault("n", "= 5", "= 6")).unwrap(), "const N: u32 = 6;");
    }
}
