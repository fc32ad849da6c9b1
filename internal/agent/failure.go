package agent

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// FailureKind is the kind of a failed start of an engine.
type FailureKind string

// The kinds.
const (
	FailureImageNotFound   FailureKind = "image_not_found"   // the registry does not have the image
	FailureImageDenied     FailureKind = "image_denied"      // the registry requires credentials
	FailureNoSpace         FailureKind = "no_space"          // the disk is full
	FailureWeightsDenied   FailureKind = "weights_denied"    // the machine has no identity, or it or its token may not read the weights
	FailureWeightsNotFound FailureKind = "weights_not_found" // the bucket, folder or repository does not exist
	FailureGPUMemory       FailureKind = "out_of_gpu_memory" // the model and its KV cache do not fit
	FailurePortInUse       FailureKind = "port_in_use"       // another process listens on a port
	FailureCrashLoop       FailureKind = "crash_loop"        // the engine exits repeatedly, with another cause
	FailureUnknown         FailureKind = "unknown"           // anything else, such as a network error
)

// Failure is why a start fails.
type Failure struct {
	Kind FailureKind `json:"kind"`
	// Permanent is true if further attempts would fail in the same way until an operator changes
	// something.
	Permanent bool `json:"permanent"`
	// Attempts is the number of failed attempts since the engine was ready or its deployment changed.
	Attempts int `json:"attempts"`
	// Message is the error: a line of the engine's log, or of the step that failed.
	Message string `json:"message"`
	// Lines are the last lines of the engine's log, at most 20. Secrets are masked.
	Lines []string `json:"lines"`
	// Hint is what an operator can change.
	Hint string `json:"hint"`
}

// String returns the kind and the message.
func (f *Failure) String() string { return string(f.Kind) + ": " + f.Message }

// Evidence is what is known about a failed start.
type Evidence struct {
	// PrepareError is the error of preparing or starting the unit; empty = it was started.
	PrepareError string
	// Attempts is the number of failed preparations, or of restarts, since the unit was last ready.
	Attempts int
	// ExitReason is why the unit is not running; empty while it runs. ExitCode is its exit code; 0 = unknown.
	ExitReason string
	ExitCode   int
	// Lines are the last lines of the unit's log.
	Lines []string
	// DiskFree is the free space of the machine's disk in bytes; nil = unknown.
	DiskFree *uint64
}

const (
	// crashLoopRestarts is the number of restarts that make a crash loop. The failure that a port is in use is permanent
	// after as many restarts: before, an earlier process may still be ending.
	crashLoopRestarts = 3
	// minAttempts is the number of attempts after which a failure with a known cause is permanent: one
	// failure may be chance.
	minAttempts = 2
	// minDeniedAttempts is the same for denied downloads, about two minutes at retryInterval: new
	// permissions take up to a minute to apply in a cloud.
	minDeniedAttempts = 8
	// minDiskFree is the free space below which a failure is attributed to the disk.
	minDiskFree = 256 << 20
	// classifiedLines is the number of log lines that are searched for a cause: a traceback of vLLM's
	// processes has more than 100. failureLines of them are reported, each up to maxLineBytes.
	classifiedLines = 300
	failureLines    = 20
	maxLineBytes    = 500
)

// failureRule recognises the cause of a failure. The rules are compiled at their first use, not in every command.
type failureRule struct {
	kind    FailureKind
	pattern *regexp.Regexp
	hint    string // empty = that of the kind
}

// prepareRules recognise errors of pulls and downloads, in the order of their precedence. The messages
// are those of registries' API (docs.docker.com/reference/api/registry, 2026) and of this package; those of
// Docker itself were not looked up again.
var prepareRules = sync.OnceValue(func() []failureRule {
	return []failureRule{
		{kind: FailureNoSpace, pattern: regexp.MustCompile(`(?i)no space left on device|disk quota exceeded`)},
		{kind: FailureImageNotFound, pattern: regexp.MustCompile(`(?i)docker (pull|run): .*(manifest unknown|manifest for \S+ not found|: not found|invalid reference format|no matching manifest)`)},
		{kind: FailureImageDenied, pattern: regexp.MustCompile(`(?i)docker (pull|run): .*(pull access denied|no basic auth credentials|unauthorized|: denied|403 forbidden|insufficient_scope|authentication required)`)},
		{FailureWeightsDenied, regexp.MustCompile(`(?i)getting the machine's credentials: .*HTTP status 40[134]`), "give the machine an identity that may read the bucket: at AWS run 'skyserve up', at Google set gcp.replica_account"},
		{kind: FailureWeightsDenied, pattern: regexp.MustCompile(`(?i)(listing|downloading|adapter) .*HTTP status 40[13]`)},
		{kind: FailureWeightsNotFound, pattern: regexp.MustCompile(`(?i)(listing|downloading|adapter) .*(HTTP status 404|no objects found)|contains no adapter_config\.json`)},
	}
})

// logRules recognise causes in the logs of engines, in the order of their precedence: a gated repository
// is also reported as not found. Looked up in public issue threads (2026): memory errors of vLLM and SGLang,
// and gated repositories of huggingface_hub. The others, of PyTorch and boto3 too, are assumed.
var logRules = sync.OnceValue(func() []failureRule {
	return []failureRule{
		{kind: FailureNoSpace, pattern: regexp.MustCompile(`(?i)no space left on device|not enough free disk space|disk quota exceeded`)},
		{kind: FailureWeightsDenied, pattern: regexp.MustCompile(`(?i)gated repo|is gated|GatedRepoError|invalid user token|invalid credentials in authorization header|\((AccessDenied|403|InvalidAccessKeyId|ExpiredToken|SignatureDoesNotMatch)\) when calling|unable to locate credentials`)},
		{kind: FailureWeightsNotFound, pattern: regexp.MustCompile(`(?i)repository not found|RepositoryNotFoundError|revision not found|not a valid model identifier|is not a local folder|\((NoSuchBucket|NoSuchKey|404)\) when calling|cannot find any model weights|entry not found for url: \S+/config\.json`)},
		{kind: FailureWeightsDenied, pattern: regexp.MustCompile(`(?i)40[13] client error.*huggingface\.co`)},
		{kind: FailureGPUMemory, pattern: regexp.MustCompile(`(?i)cuda out of memory|cuda error: out of memory|hip out of memory|OutOfMemoryError|no available memory for the cache blocks|larger than the available kv cache memory|larger than the maximum number of tokens that can be stored in kv cache|less than desired gpu memory utilization|not enough memory\. please try to increase --mem-fraction-static`)},
		{kind: FailurePortInUse, pattern: regexp.MustCompile(`(?i)address already in use`)},
	}
})

// hints are the next steps of failures.
var hints = map[FailureKind]string{
	FailureImageNotFound:   "correct models[].engine.image: the registry has no such repository, tag or platform",
	FailureImageDenied:     "use an image that machines can pull without credentials, or check its name: registries also deny repositories that do not exist",
	FailureNoSpace:         "use a smaller image or model, or a machine type with a larger disk",
	FailureWeightsDenied:   "grant the machine's identity access to the bucket; for the Hugging Face hub set models[].secrets: {HF_TOKEN: env:HF_TOKEN} with a token that may read the repository",
	FailureWeightsNotFound: "correct the model's name or engine.weights; a private repository of the Hugging Face hub also requires models[].secrets: {HF_TOKEN: env:HF_TOKEN}",
	FailureGPUMemory:       "use more or larger GPUs (models[].gpus), or reduce the context in engine.args: --max-model-len of vLLM, --context-length of SGLang",
	FailurePortInUse:       "stop the process that uses the port; the machine retries",
	FailureCrashLoop:       "correct the cause that the log shows, often engine.args or engine.image",
	FailureUnknown:         "wait: the machine retries; if the same error remains, correct its cause",
}

// ClassifyFailure returns why a start fails; nil if nothing has failed yet.
func ClassifyFailure(e Evidence) *Failure {
	if e.PrepareError == "" && e.Attempts == 0 && e.ExitReason == "" {
		return nil
	}
	f := &Failure{Attempts: e.Attempts, Lines: lastFailureLines(e.Lines)}
	if f.Kind, f.Message, f.Hint = causeOf(e); f.Kind == FailurePortInUse {
		f.Lines = slices.DeleteFunc(f.Lines, isHint) // about flags that only the agent sets
	}
	if e.PrepareError == "" && f.Kind == FailureUnknown && e.Attempts >= crashLoopRestarts {
		f.Kind = FailureCrashLoop
	}
	f.Permanent, f.Hint = isPermanentFailure(f.Kind, e), cmp.Or(f.Hint, hints[f.Kind])
	return f
}

// causeOf returns the kind of a failure, except a crash loop, with its message. hint is the next step; empty = that of
// the kind.
func causeOf(e Evidence) (kind FailureKind, message, hint string) {
	if e.PrepareError != "" {
		for _, r := range prepareRules() {
			if r.pattern.MatchString(e.PrepareError) {
				return r.kind, shorten(e.PrepareError), r.hint
			}
		}
	} else {
		for _, r := range logRules() {
			for _, line := range slices.Backward(e.Lines) {
				if r.pattern.MatchString(line) {
					return r.kind, shorten(messageOf(line)), r.hint
				}
			}
		}
	}
	kind = FailureUnknown
	if e.DiskFree != nil && *e.DiskFree < minDiskFree {
		kind = FailureNoSpace
	}
	return kind, shorten(cmp.Or(e.PrepareError, crashMessage(e))), ""
}

// crashMessage describes an engine that exited without a known cause. It is the same for each attempt,
// since alerts are stored when they change.
func crashMessage(e Evidence) string {
	message := cmp.Or(e.ExitReason, "the engine restarted")
	if e.ExitCode != 0 && !strings.Contains(message, "exit") {
		message += fmt.Sprintf(", exit code %d", e.ExitCode)
	}
	if line := errorLine(e.Lines); line != "" {
		message += ": " + line
	}
	return message
}

// errorWords occur in the lines in which programs report why they exit.
var errorWords = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)\b(\w*error|\w*exception|fatal|panic)\b`) })

// errorLine returns the last line of a log that reports an error, else lastLine.
func errorLine(lines []string) string {
	for _, line := range slices.Backward(lines[max(0, len(lines)-failureLines):]) {
		if errorWords().MatchString(line) && !isHint(line) {
			return messageOf(line)
		}
	}
	return lastLine(lines)
}

// lastLine returns the last line of a log, without the hint that follows an error; empty if there is none.
func lastLine(lines []string) string {
	for _, line := range slices.Backward(lines) {
		if !isHint(line) {
			return messageOf(line)
		}
	}
	return ""
}

// isHint reports whether a line is the hint of a skyserve command: it is about the flags of that command, which the
// agent started, and which an operator does not call.
func isHint(line string) bool { return strings.HasPrefix(line, "hint: ") }

// messageOf returns a line without the label of an error of a skyserve command.
func messageOf(line string) string { return strings.TrimPrefix(strings.TrimSpace(line), "error: ") }

// isPermanentFailure reports whether further attempts would fail in the same way.
func isPermanentFailure(kind FailureKind, e Evidence) bool {
	switch kind {
	case FailureUnknown:
		return false
	case FailureCrashLoop:
		return true
	case FailurePortInUse:
		return e.Attempts >= crashLoopRestarts
	case FailureImageDenied, FailureWeightsDenied:
		if e.PrepareError != "" {
			return e.Attempts >= minDeniedAttempts
		}
	case FailureImageNotFound, FailureNoSpace, FailureWeightsNotFound, FailureGPUMemory:
	}
	return e.Attempts >= minAttempts
}

// lastFailureLines returns the lines that a failure reports; never nil.
func lastFailureLines(lines []string) []string {
	last := []string{}
	for _, line := range lines[max(0, len(lines)-failureLines):] {
		last = append(last, shorten(line))
	}
	return last
}

// shorten limits a line to maxLineBytes.
func shorten(line string) string {
	if len(line) <= maxLineBytes {
		return line
	}
	return strings.ToValidUTF8(line[:maxLineBytes], "") + "..."
}
