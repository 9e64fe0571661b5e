//! Labels and annotations of thousands of objects, whose keys are the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Labels, or annotations, of an object. They take a third of what a map of their own would.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelMap(
    /// In the order of the keys.
    Vec<(Arc<str>, String)>,
);

impl LabelMap {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&String> {
        self.0.get(self.place(key).ok()?).map(|(_, value)| value)
    }

    /// The map has this key.
    pub fn contains_key(&self, key: &str) -> bool {
        self.place(key).is_ok()
    }

    /// The map has no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets a key; returns what it was before.
    pub fn insert(&mut self, key: String, value: String) -> Option<String> {
        match self.place(&key) {
            Ok(place) => self.0.get_mut(place).map(|(_, before)| std::mem::replace(before, value)),
            Err(place) => {
                self.0.insert(place, (key.into(), value));
                None
            }
        }
    }

    /// Takes a key away; returns what it was.
    pub fn remove(&mut self, key: &str) -> Option<String> {
        let place = self.place(key).ok()?;
        Some(self.0.remove(place).1)
    }

    /// Keys and values, in the order of the keys.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, value.as_str()))
    }

    fn place(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(key))
    }
}

impl From<BTreeMap<String, String>> for LabelMap {
    fn from(texts: BTreeMap<String, String>) -> Self {
        Self(texts.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }
}

/// Keys that are held once.
#[derive(Debug, Default)]
pub struct KeyInterner {
    known: BTreeSet<Arc<str>>,
    /// How many may be known before those are dropped that nobody holds any more.
    most: usize,
}

impl KeyInterner {
    /// The texts of an object, with keys that others have, too.
    pub fn intern(&mut self, texts: BTreeMap<String, String>) -> LabelMap {
        let mut held = Vec::with_capacity(texts.len());
        held.extend(texts.into_iter().map(|(key, value)| (self.share(key), value)));
        LabelMap(held)
    }

    /// A text that others have, too.
    pub fn share(&mut self, key: String) -> Arc<str> {
        if let Some(known) = self.known.get(key.as_str()) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.most {
            self.known.retain(|known| Arc::strong_count(known) > 1);
            self.most = (self.known.len() * 2).max(64);
        }
        let shared = Arc::from(key);
        self.known.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(texts: &[(&str, &str)]) -> BTreeMap<String, String> {
        texts.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn texts_are_found_by_their_keys_however_they_came_in() {
        let mut texts = LabelMap::from(map(&[("b", "2"), ("d", "4")]));
        assert_eq!(texts.insert("a".into(), "1".into()), None);
        assert_eq!(texts.insert("c".into(), "3".into()), None);
        assert_eq!(texts.insert("d".into(), "5".into()), Some("4".into()));
        let found: Vec<_> = ["a", "b", "c", "d", "e"].map(|key| texts.get(key).map(String::as_str)).into();
        assert_eq!(found, [Some("1"), Some("2"), Some("3"), Some("5"), None]);
        assert!(texts.contains_key("a") && !texts.contains_key("e") && !texts.is_empty());
        assert_eq!([texts.remove("b"), texts.remove("e")], [Some("2".into()), None]);
        assert_eq!(texts.entries().collect::<Vec<_>>(), [("a", "1"), ("c", "3"), ("d", "5")]);
    }

    #[test]
    fn a_key_shared_by_many_objects_is_held_once() {
        let mut keys = KeyInterner::default();
        let [one, other] = ["1", "2"].map(|value| keys.intern(map(&[("key", value)])));
        assert!(Arc::ptr_eq(&one.0[0].0, &other.0[0].0));
        assert_eq!(one, LabelMap::from(map(&[("key", "1")])));
    }

    #[test]
    fn keys_that_nobody_holds_any_more_are_forgotten() {
        let mut keys = KeyInterner::default();
        for number in 0..1000 {
            keys.intern(map(&[(&number.to_string(), "")]));
        }
        assert!(keys.known.len() <= 64, "{}", keys.known.len());
    }
}
