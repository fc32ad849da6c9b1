package replay_test

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testcloud/replay"
	"skyserve/internal/testkit"
	"skyserve/provision/record"
)

// recordedUp returns the calls of a recorded up and down against the emulated clouds. To record them again after a
// change of the calls, see TestSampleOfUpIsRecorded in cmd/skyserve.
func recordedUp(t *testing.T) []record.Call {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"1-up.jsonl", "2-down.jsonl"} {
		file, err := os.Open(filepath.Join("testdata/up-down", name+".gz"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		unpacked, err := gzip.NewReader(file)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(unpacked)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	files, err := record.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := replay.Sequence(files)
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// The emulated clouds respond to a recorded up and down as they did when it was recorded, although names were
// redacted, ids are generated again, requests overlapped and each process numbered its placeholders.
func TestRecordedUpHasNoDifferences(t *testing.T) {
	testkit.NotUnderRace(t, "calls one after the other")
	calls := recordedUp(t)
	differences, err := replay.Compare(calls, emulators(calls))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range differences {
		t.Error(d)
	}
	if len(calls) < 200 {
		t.Errorf("%d calls were compared, want at least 200", len(calls))
	}
}

// Real differences in responses of a recorded up and down are found, and no others with them.
func TestDifferencesInRecordedUpAreFound(t *testing.T) {
	testkit.NotUnderRace(t, "calls one after the other")
	injected := []struct {
		operation, from, to string // of the first response of the operation that has the text
		status              int    // 0 = as recorded
		want                string
	}{
		{"RunInstances", "<instanceType>", "<machineType>", 0, "machineType: recorded present"},
		{"DescribeInstances", "<privateIpAddress>", "<x>", 0, "privateIpAddress: recorded absent"},
		{"GetRole", "<RoleName>", "<Name>", 0, "Name: recorded present"},
		{"GET compute/v1/projects/{}/zones/{}/instances/{}", `"machineType"`, `"instanceType"`, 0, "instanceType: recorded present"},
		{"GET compute/v1/projects/{}/aggregated/instances", `"creationTimestamp"`, `"x"`, 0, "creationTimestamp: recorded absent"},
		{"POST compute/v1/projects/{}/global/firewalls", `"status":"RUNNING"`, `"status":1`, 0, "status: recorded number, emulated text"},
		{"POST 2013-04-01/hostedzone/{}/rrset", "<SubmittedAt>", "<At>", 0, "At: recorded present"},
		{"DeleteRole", "", "", 409, "status: recorded 409, emulated 200"},
	}
	calls := recordedUp(t)
	for _, tt := range injected {
		if !inject(calls, tt.operation, tt.from, tt.to, tt.status) {
			t.Fatalf("no response of %s has %q", tt.operation, tt.from)
		}
	}
	differences, err := replay.Compare(calls, emulators(calls))
	if err != nil {
		t.Fatal(err)
	}
	unexpected := slices.Clone(differences)
	for _, tt := range injected {
		if !slices.ContainsFunc(differences, func(d replay.Difference) bool {
			return d.Operation == tt.operation && strings.Contains(d.String(), tt.want)
		}) {
			t.Errorf("%q of %s is not found in %v", tt.want, tt.operation, differences)
		}
		unexpected = slices.DeleteFunc(unexpected, func(d replay.Difference) bool { return d.Operation == tt.operation })
	}
	if len(unexpected) > 0 {
		t.Errorf("differences that were not injected: %v", unexpected)
	}
}

// inject changes the first response of an operation that has a text.
func inject(calls []record.Call, operation, from, to string, status int) bool {
	for _, c := range calls {
		if c.Response == nil || c.Response.Status/100 != 2 || replay.Operation(c.Request) != operation || !strings.Contains(c.Response.Content(), from) {
			continue
		}
		if status != 0 {
			c.Response.Status = status
		}
		if from != "" && c.Response.JSON != nil {
			c.Response.JSON = []byte(strings.ReplaceAll(string(c.Response.JSON), from, to))
		} else if from != "" {
			closing := func(tag string) string { return strings.Replace(tag, "<", "</", 1) }
			text := strings.ReplaceAll(c.Response.XML, from, to)
			c.Response.XML = strings.ReplaceAll(text, closing(from), closing(to))
		}
		return true
	}
	return false
}
