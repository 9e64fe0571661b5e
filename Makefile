# Each target is a command or two. What a machine lacks is installed where that is allowed, else named.

# Versions other than that of go.mod have a file in e2e/control-plane/versions.
DEFAULT_KUBERNETES := $(shell sed -n 's|^.k8s.io/kubernetes v||p' e2e/control-plane/go.mod)
KUBERNETES := $(DEFAULT_KUBERNETES)
OTHERS := $(patsubst e2e/control-plane/versions/%.mod,%,$(wildcard e2e/control-plane/versions/*.mod))
# 1.34 stands for the 1.34.x that there is.
WANTED := $(firstword $(filter $(KUBERNETES) $(KUBERNETES).%,$(DEFAULT_KUBERNETES) $(OTHERS)) $(KUBERNETES))
CONTROL_PLANE := target/bed/control-plane$(addprefix -,$(filter-out $(DEFAULT_KUBERNETES),$(WANTED)))
DEFINITIONS := target/bed/definitions
KWOK := target/bed/kwok
KUBELET := target/bed/kubelet
HELM := target/bed/helm
MONITORING := target/bed/monitoring
KUBECONFORM := target/bed/kubeconform
ACTIONLINT := target/bed/actionlint
PROMTOOL := target/bed/promtool
PROSE_LINTER := target/prose/vale
# What a release build of Kubernetes would say of itself; clients and tests ask for it.
VERSION := k8s.io/component-base/version
ldflags = -s -w -X $(VERSION).gitVersion=v$(1) -X $(VERSION).gitMajor=1 -X $(VERSION).gitMinor=$(word 2,$(subst ., ,$(1))) \
	-X $(VERSION).gitTreeState=clean -X $(VERSION).gitCommit=v$(1)

.PHONY: help demo check test soak mutants coverage bench fuzz lint generate build deps control-plane definitions definitions-check kwok prose-linter promtool images images-check images-test containerfile-test versions kubelet-bed manifests chart-test

help:
	@echo "make demo [KEEP=1]   four nodes, real load, a rolling update; then the same with a DaemonSet; NODES=kubelet for real kubelets"
	@echo "make check           format, lints, prose, unit and property tests, a part of the model (3 minutes)"
	@echo "make test            the same in full, and each promise on a real control plane (11 to 14 minutes, the first time 30)"
	@echo "make soak            every scenario alone, and what nothing else tests (hours); SOAK=name for some scenarios, REPEAT=20, BEDS=4"
	@echo "make coverage        counts the lines of each crate that tests reach, without and with the scenarios of make test"
	@echo "make mutants         breaks the code in hundreds of places, one by one, and names what no test notices; MUTANTS=write/ for a part; goes on where it was stopped"
	@echo "make bench           figures beside their goals, of release builds (about two hours)"
	@echo "make fuzz            fuzz targets under libFuzzer, FUZZ_SECONDS=60 each"
	@echo "make lint            formatting and clippy"
	@echo "make generate        writes what is generated: CRDs, docs/errors.md, list of licences"
	@echo "make versions        some scenarios on each supported version of Kubernetes (an hour); KUBERNETES=1.34 for one"
	@echo "make kubelet-bed     some scenarios and the demo on real kubelets with containerd, as root (an hour); SOAK=name for some"
	@echo "make images          images for amd64 and arm64 in target/images (half an hour the first time)"
	@echo "make manifests       writes the manifests in deploy/ from the chart in deploy/chart"
	@echo "make chart-test      checks the chart and what it renders (Helm, which it is tested with, takes five minutes to build, once)"
	@echo "make deps            installs the Debian packages that demo and tests need"

# What the demo runs, and nothing else. What `cargo build --workspace --all-targets` compiles of dependencies is the same, see
# lint/features/Cargo.toml: the one after the other compiles none twice.
demo: deps $(if $(filter kubelet,$(NODES)),kubelet-packages) control-plane $(if $(filter kubelet,$(NODES)),kubelet-fittings)
	@echo "building what the demo runs: bed, operator, health-checker, virtual-kubelet (four to eight minutes on two cores, once)"
	@cargo build --locked -p e2e -p operator -p health-checker -p virtual-kubelet --bins
	@$(if $(filter kubelet,$(NODES)),BED_KUBELETS=1) target/debug/bed demo $(if $(KEEP),--keep)

check:
	@.ci/test check

test: deps control-plane
	@.ci/deps test
	@.ci/test test

# With SOAK or REPEAT, scenarios alone. Else it goes on with all that other versions of Kubernetes, real kubelets, images, chart and release are
# tested by, whatever failed before.
soak: deps control-plane build
	@$(if $(SOAK)$(REPEAT),.ci/deps soak; target/debug/bed soak$(if $(SOAK), $(SOAK))$(if $(REPEAT), --repeat $(REPEAT))$(if $(BEDS), --beds $(BEDS)),BEDS=$(BEDS) .ci/soak)

# What it builds is its own, below target/mutants.
mutants:
	@cargo build --quiet --locked --workspace --bin mutants
	@nice -n 15 target/debug/mutants

# Our crates are built once more, with counters.
coverage: deps control-plane
	@nice -n 10 .ci/coverage

# The bed itself need not be a release build; what is measured is. Of a fleet, the bed is the yardstick and the load, too.
# Without KWOK, which a machine may be unable to fetch, the bench of fleets says so and goes on.
bench: deps control-plane build
	@cargo build --release --locked -p health-checker -p operator -p virtual-kubelet -p e2e --bins
	@for name in health-checker rollouts inplace; do BED_PROGRAMS=target/release target/debug/bed bench $$name || exit 1; done
	@cargo bench --locked --quiet -p planner --bench noise
	@-$(MAKE) --no-print-directory kwok
	@for name in scale gates fleet; do BED_PROGRAMS=target/release target/release/bed bench $$name || exit 1; done

fuzz:
	@.ci/fuzz

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

generate:
	GENERATE=1 cargo test --locked --quiet -p crds --test manifest
	cp crds/manifests/*.yaml deploy/chart/files/crds/
	GENERATE=1 cargo test --locked --quiet -p files -- errors:: licences::

manifests: $(HELM)
	@.ci/chart manifests

chart-test: $(HELM) $(KUBECONFORM)
	@.ci/chart test

build:
	@echo "building the workspace (a few minutes the first time)"
	@cargo build --workspace --bins --locked

deps:
	@.ci/deps

control-plane: $(CONTROL_PLANE)

target/bed/control-plane: $(wildcard e2e/control-plane/*.go) e2e/control-plane/go.mod e2e/control-plane/go.sum
	@echo "building etcd and Kubernetes into $@ (five to nine minutes on two cores, once)"
	@mkdir -p $(@D)
	cd e2e/control-plane && go build -trimpath -ldflags "$(call ldflags,$(DEFAULT_KUBERNETES))" -o ../../$@ .
	@touch $@

target/bed/control-plane-%: e2e/control-plane/versions/%.mod e2e/control-plane/versions/%.sum $(wildcard e2e/control-plane/*.go)
	@echo "building etcd and Kubernetes into $@ (five to nine minutes on two cores, once)"
	@mkdir -p $(@D)
	cd e2e/control-plane && go build -modfile=versions/$*.mod -trimpath -ldflags "$(call ldflags,$*)" -o ../../$@ .
	@touch $@

# Some scenarios on each supported version of Kubernetes; writes docs/kubernetes-versions.md. KUBERNETES=1.34 runs one, and writes its row.
versions: deps control-plane build $(if $(filter command line,$(origin KUBERNETES)),,$(OTHERS:%=target/bed/control-plane-%))
	@target/debug/bed versions $(if $(filter command line,$(origin KUBERNETES)),$(WANTED))

# Scenarios and the demo on machines with real kubelets, and with the images as they would be published. It needs root, control groups of
# version 1, and Debian's containerd, runc, containernetworking-plugins, iptables, procps and busybox-static: it looks for them before it builds.
kubelet-bed: kubelet-packages control-plane build kubelet-fittings
	@target/debug/bed kubelets $(SOAK)

.PHONY: kubelet-packages kubelet-fittings machine-images kubelets-if-possible
# Where tools, control groups or the rights of root are missing, it builds nothing and names each scenario as not run. A build that fails has failed.
kubelets-if-possible: deps control-plane build
	@if .ci/deps kubelets; then $(MAKE) --no-print-directory kubelet-fittings; fi
	@target/debug/bed kubelets --if-possible

kubelet-packages:
	@.ci/deps kubelets

kubelet-fittings: kubelet-packages machine-images

# What machines run, for this architecture alone.
machine-images: $(KUBELET)
	@OUTPUT=target/machine-images ARCHITECTURES=$(if $(filter aarch64,$(shell uname -m)),arm64,amd64) .ci/images

$(KUBELET): e2e/kubelet/main.go e2e/kubelet/go.mod e2e/kubelet/go.sum
	@echo "building a kubelet into $@ (two minutes on two cores, once)"
	@mkdir -p $(@D)
	cd e2e/kubelet && go build -trimpath -ldflags "$(call ldflags,$(DEFAULT_KUBERNETES))" -o ../../$@ .
	@touch $@

# What Kubernetes 1.33 would refuse in the CRDs: it estimates that rules cost more than newer releases do.
definitions: definitions-check
	@$(DEFINITIONS) crds/manifests/*.yaml

definitions-check: $(DEFINITIONS)

$(DEFINITIONS): e2e/definitions/main.go e2e/definitions/go.mod e2e/definitions/go.sum
	@echo "building the check of CRDs into $@ (two minutes on two cores, once)"
	@mkdir -p $(@D)
	cd e2e/definitions && go build -trimpath -ldflags "-s -w" -o ../../$@ .
	@touch $@

# Static images for amd64 and arm64 in target/images, without a daemon; what .ci/images can be told is said there.
images:
	@.ci/images

# Images that are there. Those of the other architecture run under qemu-user-static.
images-check:
	@.ci/deps images
	cd deploy/images && go test -count=1 -tags images .

# The last line is a rollout with the programs of the images: musl is another C library.
images-test: images control-plane build
	@$(MAKE) --no-print-directory images-check
	BED_PROGRAMS=target/cross/$(shell uname -m)-unknown-linux-musl/release target/debug/bed scenario three_rollouts_in_a_row_lose_no_request

# The images of the Containerfile have the files of `make images`, to the byte, and say the same of themselves. Ten to twenty minutes; it needs
# root, buildah, debootstrap and jq.
containerfile-test:
	@.ci/deps containerfile
	@.ci/containerfile-test

kwok: $(KWOK)

# For `make bench` alone. KWOK is under the Apache License 2.0, as Kubernetes and etcd are.
$(KWOK): e2e/kwok/main.go e2e/kwok/go.mod e2e/kwok/go.sum
	@echo "building KWOK into $@ (a few minutes, once)"
	@mkdir -p $(@D)
	cd e2e/kwok && go build -trimpath -ldflags "-s -w" -o ../../$@ .
	@touch $@

# Programs of others, of one Go module: they share the clients of Kubernetes. helm and kubeconform are under the Apache License 2.0,
# actionlint under the MIT License. Helm says which release it is only if it is told.
$(HELM): PROGRAM = helm.sh/helm/v4/cmd/helm
$(HELM): PROGRAM_LDFLAGS = -X helm.sh/helm/v4/internal/version.version=v4.3.1 -X helm.sh/helm/v4/internal/version.gitTreeState=clean
$(HELM): BUILD_TIME = five minutes on two cores
$(KUBECONFORM): PROGRAM = github.com/yannh/kubeconform/cmd/kubeconform
$(KUBECONFORM): PROGRAM_LDFLAGS = -X main.version=v0.8.0
$(ACTIONLINT): PROGRAM = github.com/rhysd/actionlint/cmd/actionlint
$(ACTIONLINT): PROGRAM_LDFLAGS = -X github.com/rhysd/actionlint.version=1.7.12
$(KUBECONFORM) $(ACTIONLINT): BUILD_TIME = half a minute on two cores
$(HELM) $(KUBECONFORM) $(ACTIONLINT): e2e/tools/go.mod e2e/tools/go.sum
	@echo "building $(@F) into $@ ($(BUILD_TIME), once)"
	@mkdir -p $(@D)
	cd e2e/tools && go build -trimpath -ldflags "-s -w $(PROGRAM_LDFLAGS)" -o ../../$@ $(PROGRAM)
	@touch $@

# Two CRDs of the Prometheus Operator, under the Apache License 2.0, of the version of its types. In go.sum its module would bring all that it
# needs itself.
$(MONITORING): e2e/tools/go.mod
	@echo "fetching the CRDs of the Prometheus Operator into $@"
	@version=$$(sed -n 's|.*/prometheus-operator/pkg/apis/monitoring v|v|p' $<) && cd e2e/tools && \
		folder=$$(go mod download -json github.com/prometheus-operator/prometheus-operator@$$version | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') && \
		install -D -m 644 -t ../../$@ "$$folder"/example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml \
		"$$folder"/example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml
	@touch $@

promtool: $(PROMTOOL)

# Prometheus' own judge of alerts, under the Apache License 2.0; a module of its own, for it is large. It need not find any cloud's machines.
$(PROMTOOL): e2e/tools/promtool/go.mod e2e/tools/promtool/go.sum
	@echo "building promtool into $@ (three minutes on two cores, once; it fetches some 200 modules)"
	@mkdir -p $(@D)
	cd e2e/tools/promtool && go build -trimpath -tags remove_all_sd -ldflags "-s -w -X github.com/prometheus/common/version.Version=0.316.0" \
		-o ../../../$@ github.com/prometheus/prometheus/cmd/promtool
	@touch $@

prose-linter: $(PROSE_LINTER)

# vale (MIT), for `make check` and `make test`. Parsers in C take most of the build; here they need no optimisation.
$(PROSE_LINTER): lint/prose/go.mod lint/prose/go.sum
	@echo "building vale, which checks the documents, into $@ (a minute on two cores, once)"
	@mkdir -p $(@D)
	cd lint/prose && CGO_CFLAGS="-O0 -w" go build -trimpath -ldflags "-s -w" -o ../../$@ github.com/vale-cli/vale/v3/cmd/vale
	@touch $@

# A release: docs/releasing.md. What it publishes beside images is in target/release-files.
.PHONY: chart plugin-binaries plugin-check plugin-archives plugin-test release-check release-notes release-files release-tools release-test

chart: $(HELM)
	@.ci/chart package

plugin-binaries:
	@.ci/plugin-binaries

plugin-check:
	@.ci/plugin-check

plugin-archives:
	@.ci/plugin-archives

plugin-test:
	@.ci/plugin-test

# With TAG: for that tag.
release-check:
	@.ci/release-check $${TAG:+"$$TAG"}

release-notes:
	@.ci/release-notes "$${TAG:-$$(.ci/version)}"

release-files:
	@.ci/release-files

KREW := target/bed/krew target/bed/validate-krew-manifest

# What .ci/release-test runs.
release-tools: $(ACTIONLINT) $(KREW)
	@.ci/deps release

release-test: release-tools
	@.ci/release-test

# For tests of the plugin's manifest alone. krew is under the Apache License 2.0.
$(KREW): lint/krew/go.mod lint/krew/go.sum
	@mkdir -p $(@D)
	cd lint/krew && go build -trimpath -ldflags "-s -w" -o ../../$@ sigs.k8s.io/krew/cmd/$(@F)
	@touch $@
