//! Lists of all objects, page by page.

use futures::AsyncReadExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{Api, Resource, api::ListParams, core::Request};
use serde::{
    Deserializer,
    de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use std::{fmt, marker::PhantomData};

/// The longest answer that is read, in bytes, unless one object alone is longer. Objects may have 1.5 MB each, and a page has a hundred.
const LONGEST: u64 = 16 << 20;

/// Hands each object of a list to `take` before the next one is decoded; returns what the last page says of the list. A page has at most so
/// many objects, and fewer where they are large. The pages are of one moment: where the API server does not know it any
/// more, the list fails (410).
pub async fn pages<K>(api: &Api<K>, parameters: ListParams, most: u32, take: impl FnMut(K)) -> kube::Result<ListMeta>
where
    K: Resource + Clone + DeserializeOwned,
{
    pages_of(api, parameters, most, LONGEST, take).await
}

/// The same, where the longest answer that is read has so many bytes.
async fn pages_of<K>(api: &Api<K>, mut parameters: ListParams, most: u32, longest: u64, mut take: impl FnMut(K)) -> kube::Result<ListMeta>
where
    K: Resource + Clone + DeserializeOwned,
{
    let mut page = most;
    loop {
        let Some(text) = answer(api, &parameters.clone().limit(page), longest).await? else {
            page = (page / 8).max(1);
            continue;
        };
        let mut json = serde_json::Deserializer::from_slice(&text);
        let list = ListOf { take: &mut take, object: PhantomData }.deserialize(&mut json);
        let list = list.and_then(|list| json.end().map(|()| list)).map_err(kube::Error::SerdeError)?;
        match list.continue_.as_deref().filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(token),
            None => return Ok(list),
        }
        // Those that follow may be small.
        page = (page * 2).min(most);
    }
}

/// All objects, in pages of this many.
pub async fn all<K>(api: &Api<K>, parameters: ListParams, page: u32) -> kube::Result<Vec<K>>
where
    K: Resource + Clone + DeserializeOwned,
{
    let mut all = Vec::new();
    pages(api, parameters, page, |object| all.push(object)).await?;
    Ok(all)
}

/// One page as it is sent; `None` if it is too long and could be shorter.
async fn answer<K>(api: &Api<K>, parameters: &ListParams, longest: u64) -> kube::Result<Option<Vec<u8>>>
where
    K: Resource + Clone + DeserializeOwned,
{
    let request = Request::new(api.resource_url()).list(parameters).map_err(kube::Error::BuildRequest)?;
    let body = api.clone().into_client().request_stream(request).await?;
    let longest = if parameters.limit.is_some_and(|limit| limit > 1) { longest } else { u64::MAX };
    let mut text = Vec::new();
    body.take(longest).read_to_end(&mut text).await.map_err(kube::Error::ReadEvents)?;
    Ok((text.len() as u64 != longest).then_some(text))
}

/// A list, whose objects are handed on one by one.
struct ListOf<'t, K, F> {
    take: &'t mut F,
    object: PhantomData<K>,
}

impl<'de, K: DeserializeOwned, F: FnMut(K)> DeserializeSeed<'de> for ListOf<'_, K, F> {
    type Value = ListMeta;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ListMeta, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, K: DeserializeOwned, F: FnMut(K)> Visitor<'de> for ListOf<'_, K, F> {
    type Value = ListMeta;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut fields: M) -> Result<ListMeta, M::Error> {
        let mut metadata = None;
        while let Some(field) = fields.next_key::<String>()? {
            match field.as_str() {
                "metadata" => metadata = fields.next_value()?,
                "items" => fields.next_value_seed(ItemsOf { take: &mut *self.take, object: PhantomData })?,
                _ => drop(fields.next_value::<IgnoredAny>()?),
            }
        }
        Ok(metadata.unwrap_or_default())
    }
}

/// Its objects; none, if there is a null.
struct ItemsOf<'t, K, F> {
    take: &'t mut F,
    object: PhantomData<K>,
}

impl<'de, K: DeserializeOwned, F: FnMut(K)> DeserializeSeed<'de> for ItemsOf<'_, K, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, K: DeserializeOwned, F: FnMut(K)> Visitor<'de> for ItemsOf<'_, K, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("objects")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<(), S::Error> {
        while let Some(item) = items.next_element()? {
            (self.take)(item);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use serde_json::json;

    /// Names of what is listed from an API server with so many `ConfigMaps` of this length, and the limits that it was asked for.
    async fn listed(count: usize, length: usize, longest: Option<u64>) -> (Vec<String>, Vec<usize>) {
        let (service, mut server) = tower_test::mock::pair::<http::Request<Body>, http::Response<Body>>();
        let serve = async move {
            let mut limits = Vec::new();
            while let Some((request, reply)) = server.next_request().await {
                let uri = request.uri().to_string();
                let asked = |key: &str| {
                    let value = uri.split(['?', '&']).find_map(|pair| pair.strip_prefix(key)).map(|value| value.parse::<usize>().unwrap());
                    value.unwrap_or(0)
                };
                let (from, limit) = (asked("continue="), asked("limit="));
                limits.push(limit);
                let to = (from + limit).min(count);
                let items: Vec<_> = (from..to)
                    .map(|number| json!({ "metadata": { "name": format!("c{number}") }, "data": { "a": "x".repeat(length) } }))
                    .collect();
                let more = if to < count { to.to_string() } else { String::new() };
                let list = json!({ "kind": "ConfigMapList", "metadata": { "resourceVersion": "9", "continue": more }, "items": items });
                reply.send_response(http::Response::new(Body::from(serde_json::to_vec(&list).unwrap())));
            }
            limits
        };
        let list = async move {
            let api = Api::<ConfigMap>::all(kube::Client::new(service, "default"));
            let Some(longest) = longest else { return all(&api, ListParams::default(), 100).await.unwrap() };
            let mut found = Vec::new();
            pages_of(&api, ListParams::default(), 100, longest, |object| found.push(object)).await.unwrap();
            found
        };
        let (found, limits) = tokio::join!(list, serve);
        (found.into_iter().filter_map(|found| found.metadata.name).collect(), limits)
    }

    #[tokio::test]
    async fn every_object_is_listed_once_despite_oversized_pages() {
        let names = |count: usize| (0..count).map(|number| format!("c{number}")).collect::<Vec<_>>();
        assert_eq!(listed(250, 10, None).await, (names(250), vec![100, 100, 100]));
        // Longer than 16 MiB together.
        assert_eq!(listed(2, 9 << 20, None).await, (names(2), vec![100, 12, 1, 2]));
        let within = |length: usize| Some(16 * length as u64);
        assert_eq!(listed(25, 9999, within(9999)).await, (names(25), vec![100, 12, 24]));
        assert_eq!(listed(40, 9999, within(9999)).await, (names(40), vec![100, 12, 24, 3, 6, 12, 24]));
        // One that is too long by itself is read all the same.
        assert_eq!(listed(2, 9999, Some(9000)).await, (names(2), vec![100, 12, 1, 2, 1]));
    }

    #[tokio::test]
    async fn a_list_without_objects_has_none() {
        let mut found = Vec::<ConfigMap>::new();
        for list in [json!({}), json!({ "items": null }), json!({ "items": [], "metadata": { "resourceVersion": "7" } })] {
            let text = list.to_string();
            let mut take = |object| found.push(object);
            let of = ListOf { take: &mut take, object: PhantomData };
            of.deserialize(&mut serde_json::Deserializer::from_str(&text)).unwrap();
        }
        assert!(found.is_empty());
    }
}
