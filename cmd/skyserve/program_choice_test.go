package main

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"skyserve/provision"
)

// elfFile writes the header of a program: of 64 bits, little-endian, for an operating system and a machine.
func elfFile(t *testing.T, abi, machine byte) string {
	t.Helper()
	header := make([]byte, 64)
	copy(header, "\x7fELF\x02\x01\x01")
	header[7], header[16], header[18], header[20], header[52] = abi, 2, machine, 1, 64
	file := filepath.Join(t.TempDir(), "skyserve")
	if err := os.WriteFile(file, header, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Codes of the System V ABI: operating systems and machines.
const (
	abiNone, abiFreeBSD        = 0, 9
	machineAMD64, machineARM64 = 62, 183
)

func TestProgramIsChosen(t *testing.T) {
	t.Setenv(envProgram, "")
	const url = "https://example.com/skyserve"
	usable := elfFile(t, abiNone, machineAMD64)
	hash, err := hashFile(usable)
	if err != nil {
		t.Fatal(err)
	}
	byURL, inBucket := machineProgram{URL: url, SHA256: "a"}, machineProgram{SHA256: "b", Buckets: map[string]provision.BinaryLocation{"aws": {Bucket: "b", Region: "us-east-1", URL: "https://b.s3"}}, HadBucket: true}
	for _, tt := range []struct {
		name, program string
		before        machineProgram
		keep          bool
		want          machineProgram
		problem       string
	}{
		{name: "a URL", program: url + "#sha256=c", want: machineProgram{URL: url, SHA256: "c"}},
		{name: "a URL after a bucket", program: url + "#sha256=c", before: inBucket, want: machineProgram{URL: url, SHA256: "c", HadBucket: true}},
		{name: "the last URL", before: byURL, want: byURL},
		{name: "a file after a URL", program: usable, before: byURL, want: machineProgram{SHA256: hash, HadBucket: true, file: usable}},
		{name: "only replicas change", before: inBucket, keep: true, want: inBucket},
		{name: "only replicas change, and SKYSERVE_PROGRAM is set", program: url + "#sha256=c", before: inBucket, keep: true, want: inBucket},
		{name: "only replicas change, elsewhere deployed", keep: true, want: machineProgram{HadBucket: true}},
		{name: "a file after another", program: usable, before: inBucket, want: machineProgram{SHA256: hash, HadBucket: true, file: usable}},
		{name: "another scheme", program: "s3://bucket/skyserve", problem: `must be a file or an http or https URL, got "s3://bucket/skyserve"`},
		{name: "no file", program: "/nonexistent", problem: "/nonexistent"},
		{name: "a script", program: "program_choice_test.go", problem: "it is not a program for Linux"},
		{name: "FreeBSD", program: elfFile(t, abiFreeBSD, machineAMD64), problem: "it is built for ELFOSABI_FREEBSD, not for Linux"},
		{name: "ARM", program: elfFile(t, abiNone, machineARM64), problem: "it is built for EM_AARCH64, not for amd64"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := chooseProgram(t.Context(), tt.program, tt.before, tt.keep)
			if tt.problem == "" && (err != nil || !reflect.DeepEqual(got, tt.want)) {
				t.Errorf("got %+v, %v, want %+v", got, err, tt.want)
			}
			var exit *exitError
			if tt.problem != "" && (!errors.As(err, &exit) || exit.code != exitUsage || exit.hint == "" || !strings.Contains(err.Error(), tt.problem)) {
				t.Errorf("got %v, want %q and a hint", err, tt.problem)
			}
		})
	}
}
