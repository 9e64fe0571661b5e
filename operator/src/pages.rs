//! Lists of all objects, page by page.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{Api, api::ListParams};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Hands each page of a list to `take` before the next one is asked for; returns what the last page says of the list. `parameters` with a
/// limit; else there is one page. The pages are of one moment: where the API server does not know it any more, the list fails (410).
pub async fn pages<K>(api: &Api<K>, mut parameters: ListParams, mut take: impl FnMut(Vec<K>)) -> kube::Result<ListMeta>
where
    K: Clone + DeserializeOwned + Debug,
{
    loop {
        let page = api.list(&parameters).await?;
        take(page.items);
        match page.metadata.continue_.as_deref().filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(token),
            None => return Ok(page.metadata),
        }
    }
}

/// All objects, in pages of this many.
pub async fn all<K>(api: &Api<K>, parameters: ListParams, page: u32) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut all = Vec::new();
    pages(api, parameters.limit(page), |page| all.extend(page)).await?;
    Ok(all)
}
