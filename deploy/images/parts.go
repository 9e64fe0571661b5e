package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

// A crate that is part of a binary.
type part struct {
	name, version, licence string
	// The directory with its sources.
	sources string
	// Of this repository, not from a registry.
	own bool
	// Of its package in the registry.
	checksum string
	// What it uses, as references.
	uses []string
}

// reference names it in an SBOM.
func (part part) reference() string { return "pkg:cargo/" + part.name + "@" + part.version }

// partsOf are the crates that are linked into a program, itself first; neither those that run at build time only, nor those of tests.
func partsOf(repository, crate, triple string) ([]part, error) {
	known, err := packagesOf(repository, triple)
	if err != nil {
		return nil, err
	}
	text, err := command(repository, "cargo", "tree", "--locked", "--package", crate, "--target", triple,
		"--edges", "normal,no-proc-macro", "--prefix", "depth", "--format", "|{p}")
	if err != nil {
		return nil, err
	}
	return partsIn(string(text), known)
}

// partsIn reads `DEPTH|NAME vVERSION (…)`, a line for each use of a crate; what it uses follows where it is named first.
func partsIn(tree string, known map[string]part) ([]part, error) {
	var order, above []string
	found := map[string]*part{}
	for line := range strings.Lines(tree) {
		before, rest, isLine := strings.Cut(strings.TrimSpace(line), "|")
		depth, err := strconv.Atoi(before)
		words := strings.Fields(rest)
		if !isLine || err != nil || len(words) < 2 || depth > len(above) {
			return nil, fmt.Errorf("cargo tree wrote %q", line)
		}
		key := words[0] + " " + strings.TrimPrefix(words[1], "v")
		if found[key] == nil {
			one, isKnown := known[key]
			if !isKnown {
				return nil, fmt.Errorf("cargo metadata does not know %s", key)
			}
			found[key] = &one
			order = append(order, key)
		}
		above = append(above[:depth], key)
		if depth > 0 {
			user := found[above[depth-1]]
			if used := found[key].reference(); !slices.Contains(user.uses, used) {
				user.uses = append(user.uses, used)
			}
		}
	}
	var parts []part
	for _, key := range order {
		parts = append(parts, *found[key])
	}
	return parts, nil
}

// packagesOf are all crates of Cargo.lock, by name and version.
func packagesOf(repository, triple string) (map[string]part, error) {
	text, err := command(repository, "cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", triple)
	if err != nil {
		return nil, err
	}
	var metadata struct {
		Packages []struct {
			Name         string
			Version      string
			License      string
			Source       *string
			ManifestPath string `json:"manifest_path"`
		}
	}
	if err := json.Unmarshal(text, &metadata); err != nil {
		return nil, fmt.Errorf("cargo metadata: %w", err)
	}
	lock, err := os.ReadFile(filepath.Join(repository, "Cargo.lock"))
	if err != nil {
		return nil, err
	}
	checksums := checksumsIn(string(lock))
	known := map[string]part{}
	for _, one := range metadata.Packages {
		key := one.Name + " " + one.Version
		known[key] = part{
			name: one.Name, version: one.Version, sources: filepath.Dir(one.ManifestPath), own: one.Source == nil, checksum: checksums[key],
			// Cargo's former spelling.
			licence: strings.ReplaceAll(one.License, "/", " OR "),
		}
	}
	return known, nil
}

var locked = regexp.MustCompile(`(?s)name = "([^"]+)"\nversion = "([^"]+)"\nsource = "[^"]+"\nchecksum = "([0-9a-f]{64})"`)

func checksumsIn(lock string) map[string]string {
	checksums := map[string]string{}
	for _, match := range locked.FindAllStringSubmatch(lock, -1) {
		checksums[match[1]+" "+match[2]] = match[3]
	}
	return checksums
}

// bom describes a binary in CycloneDX.
func (build release) bom(program program, parts []part) ([]byte, error) {
	bom := cyclonedx.NewBOM()
	component := func(part part) cyclonedx.Component {
		component := cyclonedx.Component{
			Type: cyclonedx.ComponentTypeLibrary, BOMRef: part.reference(), Name: part.name, Version: part.version, PackageURL: part.reference(),
		}
		if part.licence != "" {
			component.Licenses = &cyclonedx.Licenses{{Expression: part.licence}}
		}
		if part.checksum != "" {
			component.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: part.checksum}}
		}
		if part.own {
			// No registry has it.
			component.PackageURL = ""
		}
		return component
	}
	root := component(parts[0])
	root.Type, root.Description, root.Version = cyclonedx.ComponentTypeApplication, program.description, build.version
	bom.Metadata = &cyclonedx.Metadata{Timestamp: build.created.Format(time.RFC3339), Component: &root}
	components := []cyclonedx.Component{}
	dependencies := []cyclonedx.Dependency{}
	for position, part := range parts {
		if position > 0 {
			components = append(components, component(part))
		}
		uses := slices.Clone(part.uses)
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: part.reference(), Dependencies: &uses})
	}
	bom.Components, bom.Dependencies = &components, &dependencies
	text, err := encode(bom)
	if err != nil {
		return nil, err
	}
	// GitHub attests none without a serial number. It follows from the rest, so that the same sources make the same image.
	bom.SerialNumber = uuid.NewSHA1(uuid.NameSpaceOID, text).URN()
	return encode(bom)
}

func encode(bom *cyclonedx.BOM) ([]byte, error) {
	var text bytes.Buffer
	encoder := cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON)
	err := encoder.SetPretty(true).EncodeVersion(bom, cyclonedx.SpecVersion1_6)
	return text.Bytes(), err
}

var (
	licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|unlicense)`)
	// Such as licenses.rs.
	sourceFile = regexp.MustCompile(`(?i)\.(rs|c|h|go|py)$`)
)

// licenceTexts are those of a crate, by path. What it brings along of others, such as sources in C, has its own below the directory of that.
func licenceTexts(sources string) ([]string, error) {
	var texts []string
	err := filepath.WalkDir(sources, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || !licenceFile.MatchString(entry.Name()) || sourceFile.MatchString(entry.Name()) {
			return err
		}
		content, err := os.ReadFile(path)
		texts = append(texts, strings.TrimSpace(strings.ReplaceAll(string(content), "\r\n", "\n")))
		return err
	})
	return texts, err
}

// licencesOf are the texts that the crates come with, each once, below the names of the crates that have it; and what else the target's
// compiler links.
func licencesOf(parts []part, triple string) (string, error) {
	var texts []string
	users := map[string][]string{}
	for _, part := range parts {
		if part.own {
			continue
		}
		name := part.name + " " + part.version
		found, err := licenceTexts(part.sources)
		if err != nil {
			return "", err
		}
		if len(found) == 0 {
			found = []string{"Licence: " + part.licence + ". The package contains no text of it."}
		}
		for _, text := range found {
			if users[text] == nil {
				texts = append(texts, text)
			}
			if !slices.Contains(users[text], name) {
				users[text] = append(users[text], name)
			}
		}
	}
	var document strings.Builder
	document.WriteString("Parts of this program, and the licences that they come with.\n")
	for _, text := range texts {
		fmt.Fprintf(&document, "\n==== %s ====\n\n%s\n", strings.Join(users[text], ", "), text)
	}
	document.WriteString("\n==== Rust's standard library: MIT OR Apache-2.0, https://www.rust-lang.org ====\n")
	document.WriteString(libraries[triple[strings.LastIndex(triple, "-")+1:]])
	return document.String(), nil
}

// licencesFor are those of a crate of the checkout.
func licencesFor(repository, crate, triple string) (string, error) {
	parts, err := partsOf(repository, crate, triple)
	if err != nil {
		return "", err
	}
	return licencesOf(parts, triple)
}

// By the end of Rust's name of a target. macOS has its own.
var libraries = map[string]string{
	"musl": "==== musl, the C library: MIT, https://musl.libc.org ====\n",
	"gnu":  "==== mingw-w64, the C library: ZPL-2.1 and public domain, https://www.mingw-w64.org ====\n",
}

// What an image has beside a program.
const roots = "==== certificates in /etc/ssl/certs: MPL-2.0, of Mozilla's list, https://wiki.mozilla.org/CA ====\n"
