// Package main puts static binaries into images, without a daemon: an OCI layout and an archive for each program, with an
// index of the architectures. The same binaries give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// A program and its image.
type program struct {
	image       string
	crate       string
	binary      string
	description string
}

var programs = []program{
	{"operator", "operator", "ingress-daemonset-operator", "Operator of IngressDaemonSets"},
	{"health-checker", "health-checker", "health-checker", "Answers the load balancer's health checks on each node"},
	{"virtual-kubelet", "virtual-kubelet", "virtual-kubelet", "Nodes whose pods are local processes, or simulated"},
	{"kubectl-ids", "kubectl-ids", "kubectl-ids", "kubectl plugin that shows and steers rollouts"},
}

// Rust's names of the targets, by the architecture in the image.
var triples = map[string]string{"amd64": "x86_64-unknown-linux-musl", "arm64": "aarch64-unknown-linux-musl"}

// Nobody's: no file belongs to it, and `runAsNonRoot` accepts it because it is a number.
const user = 65532

// What every image says of this build.
type release struct {
	repository string // the checkout
	version    string
	revision   string
	source     string
	created    time.Time
	prefix     string // of the images' names
	binaries   string
	output     string
	unpack     bool
}

func main() {
	var build release
	var architectures, texts, triple string
	var created int64
	flag.StringVar(&build.repository, "repository", ".", "checkout that the binaries are built from")
	flag.StringVar(&build.version, "version", "", "version, which becomes the tag")
	flag.StringVar(&build.revision, "revision", "", "commit")
	flag.StringVar(&build.source, "source", "", "address of the sources")
	flag.Int64Var(&created, "created", 0, "time of the commit in seconds since 1970")
	flag.StringVar(&build.prefix, "prefix", "registry.invalid/ingress-daemonset", "registry and path of the images' names in the archives")
	flag.StringVar(&build.binaries, "binaries", "target/cross", "directory with TRIPLE/release/BINARY")
	flag.StringVar(&build.output, "output", "target/images", "directory to write to")
	flag.StringVar(&architectures, "architectures", "amd64,arm64", "architectures, separated by commas")
	flag.BoolVar(&build.unpack, "unpack", false, "also write the files of each image to OUTPUT/NAME-ARCHITECTURE, as the Containerfile needs them")
	flag.StringVar(&texts, "licences", "", "crate: print the licences of what it is built with for -triple, and write no image")
	flag.StringVar(&triple, "triple", "", "Rust's name of the target, for -licences")
	flag.Parse()
	if texts != "" {
		text, err := licencesFor(build.repository, texts, triple)
		if err != nil {
			fmt.Fprintln(os.Stderr, "images:", err)
			os.Exit(1)
		}
		fmt.Print(text)
		return
	}
	if err := checkPrefix(build.prefix); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
	build.created = time.Unix(created, 0).UTC()
	for _, program := range programs {
		if err := build.write(program, strings.Split(architectures, ",")); err != nil {
			fmt.Fprintf(os.Stderr, "images: %s: %v\n", program.image, err)
			os.Exit(1)
		}
	}
}

// checkPrefix refuses a name without a host: containerd keeps the name that an archive has, and a kubelet looks for it below docker.io.
func checkPrefix(prefix string) error {
	host, path, _ := strings.Cut(prefix, "/")
	if path != "" && (host == "localhost" || strings.ContainsAny(host, ".:")) {
		return nil
	}
	return fmt.Errorf("prefix %q: begin it with a host and a slash, as in registry.example.com/edge or localhost/edge", prefix)
}

// write makes the layout, the archive, and the SBOM of each architecture.
func (build release) write(program program, architectures []string) error {
	directory := filepath.Join(build.output, program.image)
	if err := os.RemoveAll(directory); err != nil {
		return err
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	var index v1.ImageIndex = mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range architectures {
		triple, isKnown := triples[architecture]
		if !isKnown {
			return fmt.Errorf("architecture %q: it must be one of amd64, arm64", architecture)
		}
		files, err := build.files(program, triple)
		if err != nil {
			return err
		}
		if err := os.WriteFile(fmt.Sprintf("%s-%s.cdx.json", directory, architecture), files[sbom].content, 0o644); err != nil {
			return err
		}
		if build.unpack {
			if err := unpack(files, fmt.Sprintf("%s-%s", directory, architecture)); err != nil {
				return err
			}
		}
		image, err := build.image(program, architecture, files)
		if err != nil {
			return err
		}
		platform := &v1.Platform{OS: "linux", Architecture: architecture}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	index = mutate.Annotations(index, build.labels(program)).(v1.ImageIndex)
	path, err := layout.Write(directory, empty.Index)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s/%s:%s", build.prefix, program.image, build.version)
	// containerd reads the first one, everybody else the second one.
	names := map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": build.version}
	if err := path.AppendIndex(index, layout.WithAnnotations(names)); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s@%s\n", name, digest)
	return archive(directory, directory+".tar")
}

// labels are OCI's annotations of an image.
func (build release) labels(program program) map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":       program.image,
		"org.opencontainers.image.description": program.description,
		"org.opencontainers.image.version":     build.version,
		"org.opencontainers.image.revision":    build.revision,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.created":     build.created.Format(time.RFC3339),
	}
	if build.source != "" {
		labels["org.opencontainers.image.source"] = build.source
	}
	return labels
}

// A file of an image; its path has no leading slash.
type file struct {
	path    string
	mode    fs.FileMode
	content []byte
}

// The SBOM comes first in what files returns.
const sbom = 0

// files are all of an image: the binary, what it needs of a system, and the licences.
func (build release) files(program program, triple string) ([]file, error) {
	parts, err := partsOf(build.repository, program.crate, triple)
	if err != nil {
		return nil, err
	}
	bom, err := build.bom(program, parts)
	if err != nil {
		return nil, err
	}
	binary, err := os.ReadFile(filepath.Join(build.binaries, triple, "release", program.binary))
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile(filepath.Join(build.repository, "LICENSE"))
	if err != nil {
		return nil, err
	}
	others, err := licencesOf(parts, triple)
	if err != nil {
		return nil, err
	}
	users := fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%d:%d:nonroot:/:/sbin/nologin\n", user, user)
	return []file{
		{"licenses/sbom.cdx.json", 0o644, bom},
		{"licenses/LICENSE", 0o644, own},
		{"licenses/THIRD-PARTY", 0o644, []byte(others + roots)},
		{"etc/passwd", 0o644, users},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, certificates()},
		{program.binary, 0o755, binary},
	}, nil
}

// unpack writes them below a directory.
func unpack(files []file, directory string) error {
	if err := os.RemoveAll(directory); err != nil {
		return err
	}
	for _, file := range files {
		path := filepath.Join(directory, file.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, file.content, file.mode); err != nil {
			return err
		}
	}
	return nil
}

// image has one layer.
func (build release) image(program program, architecture string, files []file) (v1.Image, error) {
	layer, err := layerOf(build.created, files)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{
		CreatedBy: "make images", Created: v1.Time{Time: build.created},
	}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", architecture
	config.Created = v1.Time{Time: build.created}
	config.Config = v1.Config{
		User:       fmt.Sprintf("%d:%d", user, user),
		Entrypoint: []string{"/" + program.binary},
		WorkingDir: "/",
		Labels:     build.labels(program),
	}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(image, build.labels(program)).(v1.Image), nil
}

func layerOf(created time.Time, files []file) (v1.Layer, error) {
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	written := map[string]bool{}
	for _, file := range files {
		segments := strings.Split(filepath.Dir(file.path), "/")
		for length := range segments {
			directory := strings.Join(segments[:length+1], "/") + "/"
			if directory == "./" || written[directory] {
				continue
			}
			written[directory] = true
			header := &tar.Header{Typeflag: tar.TypeDir, Name: directory, Mode: 0o755, ModTime: created}
			if err := writer.WriteHeader(header); err != nil {
				return nil, err
			}
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: file.path, Mode: int64(file.mode), Size: int64(len(file.content)), ModTime: created}
		if err := writer.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := writer.Write(file.content); err != nil {
			return nil, err
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil }
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer))
}

// certificates are the authorities that Mozilla trusts, for kubeconfigs that name none. Those that it trusts with conditions, which
// this format cannot say, are left out.
func certificates() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			// Writing to a buffer does not fail.
			_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return text.Bytes()
}

// archive puts a directory into a tar file, as `ctr images import`, `kind load image-archive` and `skopeo` read it.
func archive(directory, path string) error {
	var paths []string
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(paths)
	output, err := os.Create(path)
	if err != nil {
		return err
	}
	defer output.Close()
	writer := tar.NewWriter(output)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		if err := writer.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		if _, err := writer.Write(content); err != nil {
			return err
		}
	}
	if err := writer.Close(); err != nil {
		return err
	}
	return output.Close()
}

// command returns what a program prints in the checkout.
func command(repository string, arguments ...string) ([]byte, error) {
	process := exec.Command(arguments[0], arguments[1:]...)
	process.Dir = repository
	process.Stderr = os.Stderr
	output, err := process.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(arguments, " "), err)
	}
	return output, nil
}
