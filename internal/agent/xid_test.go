package agent

import (
	"strings"
	"testing"
)

func TestParseXid(t *testing.T) {
	for _, tt := range []struct {
		line  string
		want  string // empty = not an error of a GPU
		fatal bool
	}{
		{"NVRM: Xid (PCI:0000:65:00): 79, pid=1101234, name=nvc:[driver], GPU has fallen off the bus.", "Xid 79 on 0000:65:00: GPU has fallen off the bus", true},
		{"3,1234,5678901,-;NVRM: Xid (PCI:0000:c6:00): 48, An uncorrectable double bit error (DBE)", "Xid 48 on 0000:c6:00: double bit ECC error", true},
		{"[  269.516977] NVRM: Xid (0000:03:00): 14, Channel 00000001", "Xid 14 on 0000:03:00", false},
		{"NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.", "Xid 63 on 0000:10:1c", false},
		{"NVRM: Xid (PCI:0000:10:1c): 64, pid=1896, Row Remapper: Error recording", "Xid 64 on 0000:10:1c: ECC page retirement or row remapping failed", true},
		{"NVRM: Xid (PCI:0000:10:1c GPU-I:03): 94, pid='<unknown>', Contained: SM (0x1)", "Xid 94 on 0000:10:1c: contained memory error", true},
		{"NVRM: Xid (PCI:0000:01:00): 13, Graphics SM Warp Exception", "Xid 13 on 0000:01:00", false},
		{"NVRM: Xid (PCI:0000:01:00): 31, pid=2, MMU Fault", "Xid 31 on 0000:01:00", false},
		{"NVRM: Xid (PCI:0000:01:00): 43, pid=2, Ch 00000008", "Xid 43 on 0000:01:00", false},
		{"NVRM: Xid (PCI:0000:01:00): 45, pid=12542, name=VLLM::Worker", "Xid 45 on 0000:01:00", false},
		{"NVRM: Xid (PCI:0000:01:00): 119, Timeout waiting for RPC from GSP", "Xid 119 on 0000:01:00: GSP RPC timeout", true},
		{"NVRM: Xid (PCI:0000:01:00): 143", "Xid 143 on 0000:01:00: GPU initialization failure", true},
		{"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "Xid 154 on 0000:01:00: GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", true},
		{"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "Xid 154 on 0000:01:00: GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", true},
		{"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "Xid 154 on 0000:01:00: GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", false},
		{"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "Xid 154 on 0000:01:00: GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", false},
		{"NVRM: Xid (PCI:0000:01:00): 154, \x1b[31m to 0x1 (GPU Reset Required)", "Xid 154 on 0000:01:00", true},
		{line: "12,1234,5678901,-;NVRM: Xid (PCI:0000:c6:00): 79, written by a process"},
		{line: "engine: NVRM: Xid (PCI:0000:c6:00): 79, quoted by another message"},
		{line: "NVRM: GPU at PCI:0000:2b:00: GPU-0b11d014-1685-04bd-26ed-5fc0bc1c44ae"},
		{line: "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636"},
		{line: "NVRM: Xid (PCI:0000:66:00): -79, pid=2280636"},
		{line: "NVRM: Xid (PCI:0000:66:00): 4294967375, pid=2280636"},
		{line: "NVRM: Xid (\x1b[31m:00): 79, pid=1"},
		{line: "NVRM: Xid (PCI:0000:66:00"},
		{line: " SUBSYSTEM=pci"},
		{line: ""},
		{line: "NVRM: Xid (PCI:0000:65:00): 79, " + strings.Repeat("x", maxXidLine)},
	} {
		x, ok := parseXid(tt.line)
		if ok != (tt.want != "") || ok && (x.String() != tt.want || x.isFatal() != tt.fatal) {
			t.Errorf("%q: %q, fatal %v, want %q, fatal %v", tt.line, x, x.isFatal(), tt.want, tt.fatal)
		}
	}
}

// A line never breaks the parser, and what it prints is printable.
func FuzzParseXid(f *testing.F) {
	f.Add("NVRM: Xid (PCI:0000:65:00): 79, pid=1101234, GPU has fallen off the bus.")
	f.Add("3,1234,5678901,-;NVRM: Xid (PCI:0000:c6:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
	f.Add("[  269.5] NVRM: Xid (0000:03:00): 14, Channel\n")
	f.Fuzz(func(t *testing.T, line string) {
		x, ok := parseXid(line)
		if !ok {
			return
		}
		if x.code < 0 || x.code > 65535 || !strings.Contains(line, "NVRM: Xid (") {
			t.Errorf("%q became %+v", line, x)
		}
		if text := x.String(); strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q is printed as %q", line, text)
		}
	})
}
