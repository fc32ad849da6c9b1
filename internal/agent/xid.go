package agent

import (
	"fmt"
	"strconv"
	"strings"
)

// xid is an error of an NVIDIA GPU that its driver wrote to the kernel's log.
type xid struct {
	code int
	gpu  string // PCI address, 0000:65:00
	text string // the rest of the message
}

// maxXidLine is the maximum length of a line that is parsed, in bytes: a record of the kernel's log has at
// most 1 KiB of text.
const maxXidLine = 4 << 10

// parseXid parses a line of the kernel's log, as /dev/kmsg or dmesg writes it; false for any other line, such
// as one that a process wrote to the log.
func parseXid(line string) (x xid, ok bool) {
	if len(line) > maxXidLine {
		return x, false
	}
	rest, ok := strings.CutPrefix(kernelMessage(line), "NVRM: Xid (")
	if !ok {
		return x, false
	}
	gpu, rest, ok := strings.Cut(rest, "): ")
	if !ok {
		return x, false
	}
	number, text, _ := strings.Cut(rest, ",")
	code, err := strconv.ParseUint(strings.TrimSpace(number), 10, 16)
	gpu, _, _ = strings.Cut(strings.TrimPrefix(gpu, "PCI:"), " ") // an instance of a partitioned GPU follows
	if err != nil || !isPCIAddress(gpu) {
		return x, false
	}
	return xid{code: int(code), gpu: gpu, text: strings.TrimSpace(text)}, true
}

// kernelMessage returns the message of a line of the kernel's log, without the prefix of /dev/kmsg or
// dmesg; empty if a process wrote it. In /dev/kmsg the prefix begins with the priority, whose facility is 0
// for the kernel itself (https://www.kernel.org/doc/Documentation/ABI/testing/dev-kmsg, November 2026).
func kernelMessage(line string) string {
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "[") { // [  269.516977] of dmesg
		_, line, _ = strings.Cut(line, "] ")
		return line
	}
	prefix, message, ok := strings.Cut(line, ";")
	if !ok {
		return line
	}
	priority, _, fields := strings.Cut(prefix, ",")
	number, err := strconv.ParseUint(priority, 10, 16)
	switch {
	case !fields || err != nil:
		return line // the semicolon belongs to the message
	case number>>3 != 0:
		return ""
	}
	return message
}

// isPCIAddress reports whether a text is like 0000:65:00 or 0000:65:00.0.
func isPCIAddress(text string) bool {
	return len(text) >= 7 && len(text) <= 16 && strings.Trim(text, "0123456789abcdefABCDEF:.") == "" && strings.Contains(text, ":")
}

// fatalXids are the errors after which a GPU or its machine must be reset or replaced, by NVIDIA's catalogue
// (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, November 2026), with its meaning of
// each. A machine in a cloud is replaced in all these cases: that takes minutes, and the cloud tests the
// returned one. Errors of applications (13 graphics engine exception, 31 MMU fault, 43 reset channel, 45
// preemptive cleanup) are not fatal: the engine is restarted. Nor is 63, a retired page or remapped row: the
// GPU keeps working until its next reset; 64 is fatal, because the retirement failed. 94 is contained to the
// engine, but its GPU needs a reset to remap the row. 154 is not listed: isFatal reads its action. 46, 92, 110 and
// 136 are not verified against the catalogue.
var fatalXids = map[int]string{
	46:  "GPU stopped processing",
	48:  "double bit ECC error",
	62:  "internal micro-controller halt",
	64:  "ECC page retirement or row remapping failed",
	74:  "NVLink error",
	79:  "GPU has fallen off the bus",
	92:  "high single-bit ECC error rate",
	94:  "contained memory error",
	95:  "uncontained memory error",
	109: "context switch timeout",
	110: "security fault",
	119: "GSP RPC timeout",
	120: "GSP error",
	136: "event link training failed",
	140: "unrecovered ECC error",
	143: "GPU initialization failure",
}

// xidRecoveryAction reports a changed recovery action of a GPU: "GPU recovery action changed from 0x0 (None)
// to 0x1 (GPU Reset Required)".
const xidRecoveryAction = 154

// recoveryActions are the actions after which a GPU is usable only after a reset: of the GPU, of the node,
// and drain and reset. 0x0 is none, 0x3 a drain of peer-to-peer traffic
// (https://docs.nvidia.com/deploy/xid-errors/, November 2026).
var recoveryActions = map[string]bool{"0x1": true, "0x2": true, "0x4": true}

// isFatal reports whether the GPU or its machine must be reset or replaced.
func (x xid) isFatal() bool {
	if x.code != xidRecoveryAction {
		return fatalXids[x.code] != ""
	}
	_, after, _ := strings.Cut(x.text, " to ")
	action, _, _ := strings.Cut(after, " ")
	return recoveryActions[action]
}

// String returns the error for people: Xid 79 on 0000:65:00: GPU has fallen off the bus.
func (x xid) String() string {
	text, meaning := fmt.Sprintf("Xid %d on %s", x.code, x.gpu), fatalXids[x.code]
	if x.code == xidRecoveryAction && !strings.ContainsFunc(x.text, func(r rune) bool { return r < ' ' || r > '~' }) {
		meaning = x.text // it names the action
	}
	if meaning != "" {
		text += ": " + meaning
	}
	return text
}
