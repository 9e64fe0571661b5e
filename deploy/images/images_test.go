//go:build images

// What `make images` has written; `make images-test` runs this.
package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const written = "../../target/images"

// An image of one architecture.
type unpacked struct {
	program      program
	architecture string
	config       *v1.ConfigFile
	files        map[string]file
	order        []string
}

func open(t *testing.T, program program) v1.ImageIndex {
	t.Helper()
	index, err := layout.ImageIndexFromPath(filepath.Join(written, program.image))
	if err != nil {
		t.Fatalf("%v; `make images` writes it", err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%v: one entry is expected in the layout: %v", program.image, err)
	}
	inner, err := index.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return inner
}

// each runs a test for every image.
func each(t *testing.T, test func(t *testing.T, image unpacked)) {
	for _, program := range programs {
		index := open(t, program)
		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		var architectures []string
		for _, descriptor := range manifest.Manifests {
			architecture := descriptor.Platform.Architecture
			architectures = append(architectures, architecture)
			image, err := index.Image(descriptor.Digest)
			if err != nil {
				t.Fatal(err)
			}
			config, err := image.ConfigFile()
			if err != nil {
				t.Fatal(err)
			}
			one := unpacked{program: program, architecture: architecture, config: config, files: map[string]file{}}
			content := mutate.Extract(image)
			reader := tar.NewReader(content)
			for {
				header, err := reader.Next()
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if header.Uid != 0 || header.Gid != 0 {
					t.Errorf("%s: %s belongs to %d:%d", program.image, header.Name, header.Uid, header.Gid)
				}
				bytes, err := io.ReadAll(reader)
				if err != nil {
					t.Fatal(err)
				}
				if header.Typeflag == tar.TypeReg {
					one.files[header.Name] = file{header.Name, header.FileInfo().Mode(), bytes}
					one.order = append(one.order, header.Name)
				}
			}
			content.Close()
			t.Run(program.image+"/"+architecture, func(t *testing.T) { test(t, one) })
		}
		slices.Sort(architectures)
		if strings.Join(architectures, " ") != "amd64 arm64" {
			t.Errorf("%s is for %v", program.image, architectures)
		}
	}
}

func TestLayoutsAreValid(t *testing.T) {
	for _, program := range programs {
		if err := validate.Index(open(t, program)); err != nil {
			t.Errorf("%s: %v", program.image, err)
		}
	}
}

// By the library of `crane push`, for all programs.
func TestARegistryHasWhatWasPushed(t *testing.T) {
	host := registryHost(t)
	for _, program := range programs {
		reference, err := name.ParseReference(host + "/edge/" + program.image + ":0.1.0")
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.WriteIndex(reference, open(t, program)); err != nil {
			t.Fatal(err)
		}
		isThere(t, reference)
	}
}

// As docs/install.md says, in the checkout; its first command builds the images. What it installs comes from the Go proxy, if it is not there.
func TestTheCommandsOfTheGuidePushTheImages(t *testing.T) {
	guide, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	host, programs, pushed := registryHost(t), t.TempDir(), 0
	for line := range strings.Lines(string(guide)) {
		command, found := strings.CutPrefix(strings.TrimSpace(line), "$ ")
		if !found || !strings.HasPrefix(command, "go install ") && !strings.HasPrefix(command, "crane push ") {
			continue
		}
		shell := exec.Command("/bin/sh", "-c", strings.ReplaceAll(command, "registry.example.com", host))
		shell.Dir = "../.."
		shell.Env = append(os.Environ(), "GOBIN="+programs, "PATH="+programs+":"+os.Getenv("PATH"))
		if output, err := shell.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", command, err, output)
		}
		if words := strings.Fields(command); words[0] == "crane" {
			reference, err := name.ParseReference(strings.ReplaceAll(words[len(words)-1], "registry.example.com", host))
			if err != nil {
				t.Fatal(err)
			}
			isThere(t, reference)
			pushed++
		}
	}
	if pushed != 2 {
		t.Errorf("the guide pushes %d images", pushed)
	}
}

// registryHost is the address of a registry that ends with the test.
func registryHost(t *testing.T) string {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// isThere pulls an image of both architectures.
func isThere(t *testing.T, reference name.Reference) {
	t.Helper()
	for _, architecture := range []string{"amd64", "arm64"} {
		pulled, err := remote.Image(reference, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: architecture}))
		if err != nil {
			t.Fatal(err)
		}
		config, err := pulled.ConfigFile()
		if err != nil || config.Architecture != architecture {
			t.Errorf("%s for %s: %v, %v", reference, architecture, config, err)
		}
		if err := validate.Image(pulled); err != nil {
			t.Errorf("%s for %s: %v", reference, architecture, err)
		}
	}
}

func TestNothingElseIsInside(t *testing.T) {
	each(t, func(t *testing.T, image unpacked) {
		expected := []string{"etc/passwd", "etc/ssl/certs/ca-certificates.crt", "licenses/LICENSE", "licenses/THIRD-PARTY", "licenses/sbom.cdx.json", image.program.binary}
		slices.Sort(expected)
		slices.Sort(image.order)
		if !slices.Equal(image.order, expected) {
			t.Errorf("it has %v", image.order)
		}
		for name, file := range image.files {
			mode := os.FileMode(0o644)
			if name == image.program.binary {
				mode = 0o755
			}
			if file.mode != mode {
				t.Errorf("%s has the mode %v", name, file.mode)
			}
		}
	})
}

func TestItDoesNotRunAsRootAndSaysWhatItIs(t *testing.T) {
	each(t, func(t *testing.T, image unpacked) {
		config := image.config.Config
		if config.User != "65532:65532" || !slices.Equal(config.Entrypoint, []string{"/" + image.program.binary}) || image.config.Architecture != image.architecture {
			t.Errorf("user %s, entrypoint %v, architecture %s", config.User, config.Entrypoint, image.config.Architecture)
		}
		for _, label := range []string{"title", "description", "version", "revision", "licenses", "created"} {
			if config.Labels["org.opencontainers.image."+label] == "" {
				t.Errorf("no label %s", label)
			}
		}
	})
}

func TestBinariesAreStaticAndNameNoPathOfTheMachine(t *testing.T) {
	checkout, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	each(t, func(t *testing.T, image unpacked) {
		binary := image.files[image.program.binary].content
		program, err := elf.NewFile(bytes.NewReader(binary))
		if err != nil {
			t.Fatal(err)
		}
		if program.Machine != machines[image.architecture] {
			t.Errorf("it is for %v", program.Machine)
		}
		libraries, err := program.ImportedLibraries()
		if err != nil || len(libraries) > 0 {
			t.Errorf("it needs %v (%v)", libraries, err)
		}
		for _, header := range program.Progs {
			if header.Type == elf.PT_INTERP {
				t.Error("it needs a dynamic loader")
			}
		}
		for _, path := range []string{checkout + "/", filepath.Join(home, ".cargo"), filepath.Join(home, ".rustup")} {
			if bytes.Contains(binary, []byte(path)) {
				t.Errorf("it contains %s", path)
			}
		}
	})
}

func TestItStartsOnBothArchitectures(t *testing.T) {
	each(t, func(t *testing.T, image unpacked) {
		path := filepath.Join(t.TempDir(), image.program.binary)
		if err := os.WriteFile(path, image.files[image.program.binary].content, 0o755); err != nil {
			t.Fatal(err)
		}
		command := []string{path, "--version"}
		if image.architecture != runtime.GOARCH {
			machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[image.architecture]
			emulator, err := exec.LookPath("qemu-" + machine + "-static")
			if err != nil {
				t.Fatalf("%v; install qemu-user-static", err)
			}
			command = append([]string{emulator}, command...)
		}
		output, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		version := image.config.Config.Labels["org.opencontainers.image.version"]
		if expected := image.program.binary + " " + version; err != nil || !strings.HasPrefix(string(output), expected) {
			t.Errorf("it answers %q (%v), not %q", output, err, expected)
		}
	})
}

func TestTheSbomHasWhatIsLinkedAndTheLicencesOfAll(t *testing.T) {
	each(t, func(t *testing.T, image unpacked) {
		var bom cyclonedx.BOM
		content := image.files["licenses/sbom.cdx.json"].content
		if err := cyclonedx.NewBOMDecoder(bytes.NewReader(content), cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
			t.Fatal(err)
		}
		outside, err := os.ReadFile(filepath.Join(written, image.program.image+"-"+image.architecture+".cdx.json"))
		if err != nil || !bytes.Equal(outside, content) {
			t.Errorf("the SBOM beside the image is another one (%v)", err)
		}
		names := map[string]bool{}
		licences := string(image.files["licenses/THIRD-PARTY"].content)
		for _, component := range *bom.Components {
			names[component.Name] = true
			if component.Licenses == nil {
				t.Errorf("%s has no licence", component.Name)
			}
			if component.PackageURL != "" && !strings.Contains(licences, component.Name+" "+component.Version) {
				t.Errorf("the licences do not name %s", component.Name)
			}
			if component.PackageURL != "" && component.Hashes == nil {
				t.Errorf("%s has no checksum", component.Name)
			}
		}
		for name, expected := range map[string]bool{"tokio": true, "clap": true, "proptest": false, "insta": false, "serde_derive": false} {
			if names[name] != expected {
				t.Errorf("%s is part of it: %v", name, names[name])
			}
		}
		if bom.Metadata.Component.Name != image.program.crate {
			t.Errorf("it describes %s", bom.Metadata.Component.Name)
		}
	})
}

func TestTheCertificatesCanBeRead(t *testing.T) {
	each(t, func(t *testing.T, image unpacked) {
		count := 0
		for rest := image.files["etc/ssl/certs/ca-certificates.crt"].content; ; count++ {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
		}
		if count < 100 {
			t.Errorf("there are %d", count)
		}
	})
}

func TestTheArchiveIsTheLayout(t *testing.T) {
	for _, program := range programs {
		content, err := os.Open(filepath.Join(written, program.image+".tar"))
		if err != nil {
			t.Fatal(err)
		}
		defer content.Close()
		names := map[string]bool{}
		for reader := tar.NewReader(content); ; {
			header, err := reader.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			bytes, err := io.ReadAll(reader)
			if err != nil {
				t.Fatal(err)
			}
			same, err := os.ReadFile(filepath.Join(written, program.image, header.Name))
			if err != nil || string(same) != string(bytes) {
				t.Errorf("%s differs (%v)", header.Name, err)
			}
			names[header.Name] = true
			if header.Name == "index.json" {
				var index v1.IndexManifest
				if err := json.Unmarshal(bytes, &index); err != nil {
					t.Fatal(err)
				}
				name := index.Manifests[0].Annotations["io.containerd.image.name"]
				if !strings.Contains(name, "/"+program.image+":") {
					t.Errorf("its name is %q", name)
				}
			}
		}
		if !names["oci-layout"] || !names["index.json"] {
			t.Errorf("%s.tar is no OCI archive", program.image)
		}
	}
}
