package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"skyserve/internal/service"
	"skyserve/provision"
	"skyserve/provision/cloud"
	"skyserve/provision/local"
)

// machineProgram is the skyserve binary that machines in clouds download.
type machineProgram struct {
	// URL is where machines download without an identity; empty if they download from Buckets.
	URL    string `json:"url,omitempty"`
	SHA256 string `json:"sha256"`
	// Buckets are the service's own buckets, by cloud, from which machines download with their own identity.
	Buckets map[string]provision.BinaryLocation `json:"buckets,omitempty"`
	// HadBucket states that the service has, or once had, a bucket.
	HadBucket bool `json:"had_bucket,omitempty"`
	// file is the binary on this computer; empty = the bucket contains it.
	file string
}

// fetchTimeout bounds the download of the binary to compute its hash.
const fetchTimeout = 2 * time.Minute

// hintProgram is how to get a binary for machines.
const hintProgram = "GOOS=linux GOARCH=amd64 make build && mv bin/skyserve bin/skyserve-linux && make build, then pass --program bin/skyserve-linux; or pass --program URL of a binary that VMs can download"

// stored returns the binaries in buckets, by cloud.
func (p machineProgram) stored() map[string]provision.Binary {
	stored := map[string]provision.Binary{}
	for name, at := range p.Buckets {
		stored[name] = provision.Binary{SHA256: p.SHA256, Bucket: at.Bucket, File: p.file}
	}
	return stored
}

// fromBuckets reports whether machines download from buckets, which may not be located yet.
func (p machineProgram) fromBuckets() bool { return p.HadBucket && p.URL == "" }

// isChosen reports whether there is a binary with an address for machines.
func (p machineProgram) isChosen() bool { return p.URL != "" || len(p.Buckets) > 0 }

// at returns where the machines of a cloud download; private states that it requires their identity.
func (p machineProgram) at(name string) (from provision.BinaryLocation, private bool) {
	if from, private = p.Buckets[name]; private {
		return from, true
	}
	return provision.BinaryLocation{URL: p.URL}, false
}

// chooseProgram returns the binary for a service's machines: the one of --program or SKYSERVE_PROGRAM, the
// URL used before, or this binary. keep selects the one used before, whatever the others are. A binary for a
// bucket has no URL yet. It changes nothing.
func chooseProgram(ctx context.Context, text string, before machineProgram, keep bool) (machineProgram, error) {
	if keep && before.isChosen() {
		return before, nil
	}
	text = cmp.Or(text, os.Getenv(envProgram))
	if isWebURL(text) {
		p, err := programAt(ctx, text)
		p.HadBucket = before.HadBucket
		return p, err
	}
	if strings.Contains(text, "://") {
		return before, usage(fmt.Errorf("--program: must be a file or an http or https URL, got %q", text), hintProgram)
	}
	if text == "" && before.URL != "" {
		return before, nil
	}
	return fileProgram(text, keep)
}

// isWebURL reports whether --program is a URL.
func isWebURL(text string) bool {
	return strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://")
}

// fileProgram returns the binary in a file for a bucket; an empty file selects this binary, unless it does
// not run on VMs or keep is set: then the binary in the bucket is used.
func fileProgram(file string, keep bool) (machineProgram, error) {
	p := machineProgram{HadBucket: true, file: file}
	if file == "" {
		var err error
		if p.file, err = os.Executable(); err != nil {
			return p, fmt.Errorf("finding the skyserve binary: %w", err)
		}
	}
	if problem := unusableProgram(p.file); problem != nil {
		if file != "" {
			return p, usage(fmt.Errorf("--program: %s does not run on VMs: %w", file, problem), hintProgram)
		}
		keep = true
	}
	if file == "" && keep {
		p.file = ""
		return p, nil
	}
	var err error
	p.SHA256, err = hashFile(p.file)
	return p, err
}

// locate completes a binary for buckets with the bucket in each cloud of the service, and selects the binary in
// the buckets if none is selected.
func (p *machineProgram) locate(ctx context.Context, places provision.MultiCloud, spec *service.Spec, owner string) error {
	if !p.fromBuckets() {
		return nil
	}
	if p.SHA256 == "" {
		var err error
		if p.SHA256, err = storedProgram(ctx, places, spec.Name, owner); err != nil {
			return err
		}
	}
	p.Buckets = map[string]provision.BinaryLocation{} // a cloud that the service has left has none
	for _, name := range cloud.Clouds(spec) {
		store, ok := places[name].(provision.BinaryStore)
		if !ok {
			return usage(fmt.Errorf("--program URL is required: skyserve cannot store its binary in %s", name), hintProgram)
		}
		at, err := store.LocateBinary(ctx, spec.Name, owner, p.SHA256)
		if err != nil {
			return err
		}
		p.Buckets[name] = at
	}
	return nil
}

// storedProgram returns the hash of the binary in a service's buckets.
func storedProgram(ctx context.Context, places provision.MultiCloud, name, owner string) (string, error) {
	have, err := places.List(ctx, name)
	if err != nil {
		return "", err
	}
	var hashes []string
	for _, o := range have {
		_, key, _ := strings.Cut(o.Handle, "/")
		if hash, ok := provision.BinaryHash(key); ok && o.Kind == provision.KindBinary && o.Owner == owner {
			hashes = append(hashes, hash)
		}
	}
	slices.Sort(hashes)
	hashes = slices.Compact(hashes) // each cloud has a bucket
	if len(hashes) != 1 {
		return "", usage(fmt.Errorf("this skyserve does not run on VMs (linux/amd64, built without cgo), and the buckets of %s contain %d binaries to choose from", name, len(hashes)), hintProgram)
	}
	return hashes[0], nil
}

// unusableProgram returns why VMs cannot run a file; nil = they can.
func unusableProgram(file string) error {
	f, err := elf.Open(file)
	var access *fs.PathError
	if errors.As(err, &access) {
		return err
	}
	if err != nil {
		return errors.New("it is not a program for Linux")
	}
	defer func() { _ = f.Close() }() // only read
	switch {
	case f.OSABI != elf.ELFOSABI_NONE && f.OSABI != elf.ELFOSABI_LINUX:
		return fmt.Errorf("it is built for %s, not for Linux", f.OSABI)
	case f.Machine != elf.EM_X86_64:
		return fmt.Errorf("it is built for %s, not for amd64", f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("it needs libraries of the system, because it was built with cgo")
		}
	}
	return nil
}

// hashFile returns the SHA-256 of a file, in hexadecimal.
func hashFile(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("reading the skyserve binary for VMs: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("reading the skyserve binary for VMs: %s: %w", file, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// programAt returns the binary at a URL with its hash. The URL's fragment may contain the hash:
// #sha256=...
func programAt(ctx context.Context, text string) (machineProgram, error) {
	u, err := url.Parse(text)
	if err != nil {
		return machineProgram{}, usage(fmt.Errorf("--program: must be an http or https URL, got %q", text), "")
	}
	sum, stated := strings.CutPrefix(u.Fragment, "sha256=")
	u.Fragment = ""
	p := machineProgram{URL: u.String(), SHA256: sum}
	if stated {
		return p, nil
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	p.SHA256, err = hashURL(ctx, p.URL)
	if err != nil {
		return p, failed(fmt.Errorf("downloading the skyserve binary to compute its SHA-256: %w", err), "if this machine cannot reach the URL, pass the hash: --program URL#sha256=...")
	}
	return p, nil
}

// mayHaveBucket reports whether a service may have a bucket: not if this machine always deployed it with a
// URL.
func mayHaveBucket(svc local.Service) (bool, error) {
	var p machineProgram
	err := svc.LoadValue(noteProgram, &p)
	return p.URL == "" || p.HadBucket, err
}

// downloadsFromBuckets reports whether the machines of a service download from buckets: unless --program,
// SKYSERVE_PROGRAM or the last 'up' on this machine names a URL.
func downloadsFromBuckets(name, text string) (bool, error) {
	if text = cmp.Or(text, os.Getenv(envProgram)); text != "" {
		return !isWebURL(text), nil
	}
	home, err := local.OpenHome()
	if err != nil {
		return false, err
	}
	svc, err := home.Find(name)
	var none *local.NoServiceError
	if errors.As(err, &none) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	var p machineProgram
	err = svc.LoadValue(noteProgram, &p)
	return p.URL == "", err
}
