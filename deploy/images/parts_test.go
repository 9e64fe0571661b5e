package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func known(names ...string) map[string]part {
	known := map[string]part{}
	for _, name := range names {
		crate, version, _ := strings.Cut(name, " ")
		known[name] = part{name: crate, version: version}
	}
	return known
}

func TestACrateThatIsUsedTwiceIsOnePartWithTwoUsers(t *testing.T) {
	parts, err := partsIn("0|own v1.0.0 (/checkout/own)\n1|a v2.0.0\n2|b v3.0.0\n1|b v3.0.0 (*)\n1|c v4.0.0\n", known("own 1.0.0", "a 2.0.0", "b 3.0.0", "c 4.0.0"))
	if err != nil {
		t.Fatal(err)
	}
	uses := map[string]string{}
	for _, part := range parts {
		uses[part.name] = strings.Join(part.uses, " ")
	}
	expected := map[string]string{"own": "pkg:cargo/a@2.0.0 pkg:cargo/b@3.0.0 pkg:cargo/c@4.0.0", "a": "pkg:cargo/b@3.0.0", "b": "", "c": ""}
	if len(parts) != len(expected) {
		t.Errorf("%d parts", len(parts))
	}
	for name, expected := range expected {
		if uses[name] != expected {
			t.Errorf("%s uses %q, not %q", name, uses[name], expected)
		}
	}
	if parts[0].name != "own" {
		t.Errorf("%s comes first", parts[0].name)
	}
}

func TestWhatCargoDidNotSayIsAnError(t *testing.T) {
	for _, tree := range []string{"0|own", "own v1.0.0", "2|own v1.0.0", "0|other v1.0.0"} {
		if parts, err := partsIn(tree, known("own 1.0.0")); err == nil {
			t.Errorf("%q became %v", tree, parts)
		}
	}
}

func TestTheLicencesOfSourcesThatACrateBringsAlongAreThere(t *testing.T) {
	texts, err := licencesFor("../..", "operator", triples["amd64"])
	if err != nil {
		t.Fatal(err)
	}
	// Of jemalloc, of ring's curves, and of the time zones that the operator carries; each lies below a crate's top directory.
	for _, words := range []string{"Jason Evans", "the fiat-crypto authors", "the tz code and data"} {
		if !strings.Contains(texts, words) {
			t.Errorf("no text has %q", words)
		}
	}
}

func TestTheLicencesOfThePluginAreThoseOfItsPlatform(t *testing.T) {
	for triple, expected := range map[string][4]bool{
		"x86_64-unknown-linux-musl": {false, true, false, true}, "x86_64-pc-windows-gnu": {true, false, true, false}, "aarch64-apple-darwin": {},
	} {
		texts, err := licencesFor("../..", "kubectl-ids", triple)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(texts, "Permission is hereby granted, free of charge") {
			t.Errorf("%s: there is no text of the MIT licence", triple)
		}
		for number, word := range []string{"windows-sys ", "musl", "mingw-w64", "Jason Evans"} {
			if strings.Contains(texts, word) != expected[number] {
				t.Errorf("%s: it has %q: %v", triple, word, !expected[number])
			}
		}
	}
}

func TestSourcesAreNoLicences(t *testing.T) {
	sources := t.TempDir()
	for path, content := range map[string]string{"LICENSE": "one\r\n", "vendored/c/COPYING": "two", "src/licenses.rs": "no", "src/notice.c": "no", "README": "no"} {
		path = filepath.Join(sources, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if texts, err := licenceTexts(sources); err != nil || strings.Join(texts, " ") != "one two" {
		t.Errorf("%q (%v)", texts, err)
	}
}

func TestAPrefixBeginsWithAHost(t *testing.T) {
	for prefix, right := range map[string]bool{
		"registry.example.com/edge": true, "registry:5000/edge": true, "localhost/edge": true,
		"local/edge": false, "edge": false, "registry.example.com": false, "": false,
	} {
		if err := checkPrefix(prefix); (err == nil) != right {
			t.Errorf("%q: %v", prefix, err)
		}
	}
}

func TestAChecksumBelongsToOneVersion(t *testing.T) {
	sum := strings.Repeat("0123456789abcdef", 4)
	lock := "[[package]]\nname = \"own\"\nversion = \"1.0.0\"\n\n[[package]]\nname = \"a\"\nversion = \"2.0.0\"\nsource = \"registry+x\"\nchecksum = \"" + sum + "\"\n"
	sums := checksumsIn(lock)
	if len(sums) != 1 || sums["a 2.0.0"] != sum {
		t.Errorf("%v", sums)
	}
}

func TestAnSbomHasASerialNumberThatFollowsFromItsContent(t *testing.T) {
	serial := func(version string) string {
		t.Helper()
		build := release{version: version, created: time.Unix(0, 0).UTC()}
		text, err := build.bom(program{}, []part{{name: "own", version: version}})
		if err != nil {
			t.Fatal(err)
		}
		// GitHub's action takes a file for CycloneDX by these three.
		var read struct{ BomFormat, SpecVersion, SerialNumber string }
		if err := json.Unmarshal(text, &read); err != nil || read.BomFormat != "CycloneDX" || read.SpecVersion == "" {
			t.Fatalf("%v: %+v", err, read)
		}
		return read.SerialNumber
	}
	one := serial("1.0.0")
	if !regexp.MustCompile("^urn:uuid:[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$").MatchString(one) {
		t.Errorf("%q is no serial number", one)
	}
	if again, other := serial("1.0.0"), serial("1.0.1"); one != again || one == other {
		t.Errorf("%s, again %s, of another version %s", one, again, other)
	}
}
