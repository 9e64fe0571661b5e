//! As whom a container runs; no I/O except reading the maps of the own user namespace.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::container_init::Credentials;
use super::images::Image;

/// How many user ids the own user namespace has, from the text of `/proc/self/uid_map`.
pub fn mapped_ids(uid_map: &str) -> u64 {
    uid_map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok()).sum()
}

/// Who may be whom here.
///
/// ```
/// use virtual_kubelet::process::Powers;
///
/// let powers = Powers::of_this_process();
/// let may_be_others = powers.own_user == 0 && powers.mapped > 1;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Powers {
    /// The agent's user id.
    pub own_user: u32,
    /// Number of user ids that exist: 1 in a user namespace of a plain user's, 4294967295 outside of any.
    pub mapped: u64,
}

impl Powers {
    /// The powers of this process.
    pub fn of_this_process() -> Self {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self { own_user: nix::unistd::getuid().as_raw(), mapped: mapped_ids(&map) }
    }
}

/// The credentials a container asks for; `None` is the agent's own. An error is the reason to refuse it.
pub fn credentials(pod: &Pod, container: &Container, image: &Image, powers: Powers) -> Result<Option<Credentials>, String> {
    let of_pod = pod.spec.as_ref().and_then(|spec| spec.security_context.clone()).unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let asked = own.run_as_user.or(of_pod.run_as_user);
    let non_root = own.run_as_non_root.or(of_pod.run_as_non_root) == Some(true);
    let user = match asked {
        Some(user) => Some(u32::try_from(user).map_err(|_| format!("runAsUser {user} is not a user id"))?),
        None => image.user,
    };
    if non_root && user == Some(0) {
        return Err(match asked {
            Some(_) => "container's runAsUser breaks non-root policy".to_owned(),
            None => "container has runAsNonRoot and image will run as root".to_owned(),
        });
    }
    let group = own.run_as_group.or(of_pod.run_as_group).and_then(|group| u32::try_from(group).ok());
    let Some(user) = user else { return Ok(None) };
    if user == powers.own_user && group.is_none() {
        return Ok(None);
    }
    if powers.mapped <= 1 {
        return Err(if user == powers.own_user {
            "runAsGroup cannot be honoured: this node's user namespace has one id only".to_owned()
        } else {
            format!("runAsUser {user} cannot be honoured: this node's user namespace has the one id {} only", powers.own_user)
        });
    }
    let mut groups: Vec<u32> = of_pod.supplemental_groups.iter().flatten().filter_map(|group| u32::try_from(*group).ok()).collect();
    groups.extend(of_pod.fs_group.and_then(|group| u32::try_from(group).ok()));
    Ok(Some(Credentials { user, group: group.unwrap_or(0), groups }))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::SecurityContext;

    use super::*;

    const ROOT: Powers = Powers { own_user: 0, mapped: 4_294_967_295 };
    const ONE_ID: Powers = Powers { own_user: 0, mapped: 1 };

    fn container(user: Option<i64>, non_root: bool) -> Container {
        let context = SecurityContext { run_as_user: user, run_as_non_root: Some(non_root), ..SecurityContext::default() };
        Container { security_context: Some(context), ..Container::default() }
    }

    fn decide(container: &Container, image: &Image, powers: Powers) -> Result<Option<Credentials>, String> {
        credentials(&Pod::default(), container, image, powers)
    }

    #[test]
    fn the_map_of_a_plain_users_namespace_has_one_id() {
        assert_eq!(mapped_ids("         0       1000          1\n"), 1);
        assert_eq!(mapped_ids("         0          0 4294967295\n"), 4_294_967_295);
    }

    #[test]
    fn another_user_is_refused_where_only_one_id_exists() {
        let image = Image::default();
        assert!(decide(&container(Some(101), false), &image, ONE_ID).unwrap_err().contains("runAsUser 101"));
        assert_eq!(decide(&container(Some(0), false), &image, ONE_ID), Ok(None));
        assert_eq!(decide(&container(Some(101), false), &image, ROOT).unwrap().unwrap().user, 101);
    }

    #[test]
    fn non_root_is_enforced_only_where_the_user_is_known() {
        let known = Image { user: Some(0), ..Image::default() };
        assert!(decide(&container(None, true), &known, ROOT).is_err());
        assert_eq!(decide(&container(None, true), &Image::default(), ROOT), Ok(None));
        assert!(decide(&container(Some(0), true), &Image::default(), ROOT).is_err());
    }
}
