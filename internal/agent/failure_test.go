package agent

import (
	"slices"
	"strings"
	"testing"
)

// traceback is the end of a log of vLLM whose engine process failed: the cause is in its middle.
func traceback(cause string) []string {
	lines := []string{"INFO 10-25 13:08:01 [api_server.py:1896] vLLM API server version 0.11.0", "(EngineCore_DP0 pid=223) ERROR 10-25 13:08:43 [core.py:708] Traceback (most recent call last):"}
	for range 30 {
		lines = append(lines, `(EngineCore_DP0 pid=223) ERROR 10-25 13:08:43 [core.py:708]   File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core.py", line 699, in run_engine_core`)
	}
	lines = append(lines, "(EngineCore_DP0 pid=223) ERROR 10-25 13:08:43 [core.py:708] "+cause)
	return append(lines, "Traceback (most recent call last):", `  File "/usr/local/bin/vllm", line 10, in <module>`, "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}")
}

func TestFailuresInEngineLogs(t *testing.T) {
	for _, tt := range []struct {
		cause string // a line of the log
		want  FailureKind
	}{
		{"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total capacity of 21.99 GiB of which 122.38 MiB is free.", FailureGPUMemory},
		{"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.69 GiB total capacity)", FailureGPUMemory},
		{"RuntimeError: CUDA error: out of memory", FailureGPUMemory},
		{"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", FailureGPUMemory},
		{"ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (4.81 GiB).", FailureGPUMemory},
		{"ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache (7344).", FailureGPUMemory},
		{"ValueError: Free memory on device (3.12/21.95 GiB) on startup is less than desired GPU memory utilization (0.9, 19.76 GiB).", FailureGPUMemory},
		{"[2026-03-01 10:34:03 TP0] RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: self.server_args.mem_fraction_static=0.2", FailureGPUMemory},

		{"Cannot access gated repo for url https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct/resolve/main/config.json.", FailureWeightsDenied},
		{"OSError: You are trying to access a gated repo.", FailureWeightsDenied},
		{"Access to model meta-llama/Llama-3.1-8B is restricted: huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-66)", FailureWeightsDenied},
		{"huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/models/org/m", FailureWeightsDenied},
		{"Invalid credentials in Authorization header", FailureWeightsDenied},
		{"botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the GetObject operation: Access Denied", FailureWeightsDenied},
		{"botocore.exceptions.ClientError: An error occurred (403) when calling the HeadObject operation: Forbidden", FailureWeightsDenied},
		{"botocore.exceptions.NoCredentialsError: Unable to locate credentials", FailureWeightsDenied},

		{"huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. Repository Not Found for url: https://huggingface.co/api/models/org/typo.", FailureWeightsNotFound},
		{"OSError: org/typo is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'", FailureWeightsNotFound},
		{"huggingface_hub.errors.RevisionNotFoundError: 404 Client Error. Revision Not Found for url: https://huggingface.co/org/m/resolve/v9/config.json.", FailureWeightsNotFound},
		{"botocore.errorfactory.NoSuchBucket: An error occurred (NoSuchBucket) when calling the ListObjectsV2 operation: The specified bucket does not exist", FailureWeightsNotFound},
		{"RuntimeError: Cannot find any model weights with `/weights`", FailureWeightsNotFound},

		{"OSError: [Errno 28] No space left on device", FailureNoSpace},
		{"UserWarning: Not enough free disk space to download the file. The expected file size is: 4976.70 MB.", FailureNoSpace},

		{"ValueError: Unknown quantization method: awqq. Must be one of ['aqlm', 'awq']", FailureCrashLoop},
		{"vllm: error: unrecognized arguments: --max-model-length", FailureCrashLoop},
		{"error: listening on 127.0.0.1:45102: address already in use", FailurePortInUse},
		{"OSError: [Errno 98] Address already in use", FailurePortInUse},
		{"requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded", FailureCrashLoop},
	} {
		f := ClassifyFailure(Evidence{Lines: traceback(tt.cause), Attempts: 3})
		if f.Kind != tt.want || !f.Permanent || f.Hint == "" || len(f.Lines) != 20 {
			t.Errorf("%s: %+v, want %s", tt.cause, f, tt.want)
		}
		if tt.want != FailureCrashLoop && !strings.HasSuffix(f.Message, strings.TrimPrefix(tt.cause, "error: ")) {
			t.Errorf("%s: message %q", tt.cause, f.Message)
		}
	}
}

func TestFailuresOfPreparation(t *testing.T) {
	for _, tt := range []struct {
		err  string
		want FailureKind
	}{
		{"starting engine: docker pull: exit status 1: Error response from daemon: manifest for vllm/vllm-openai:v0.99 not found: manifest unknown: manifest unknown", FailureImageNotFound},
		{"starting engine: docker pull: exit status 1: Error response from daemon: failed to resolve reference \"docker.io/vllm/vllm-openai:v0.99\": docker.io/vllm/vllm-openai:v0.99: not found", FailureImageNotFound},
		{"starting engine: docker pull: exit status 1: no matching manifest for linux/arm64/v8 in the manifest list entries", FailureImageNotFound},
		{"starting engine: docker pull: exit status 1: Error response from daemon: pull access denied for acme/engine, repository does not exist or may require 'docker login': denied: requested access to the resource is denied", FailureImageDenied},
		{"starting engine: docker pull: exit status 1: Error response from daemon: Head \"https://1.dkr.ecr.us-east-1.amazonaws.com/v2/m/manifests/1\": no basic auth credentials", FailureImageDenied},
		{"starting engine: docker pull: exit status 1: Error response from daemon: Head \"https://ghcr.io/v2/acme/engine/manifests/1\": unauthorized", FailureImageDenied},
		{"starting engine: docker pull: exit status 1: write /var/lib/docker/tmp/GetImageBlob1: no space left on device", FailureNoSpace},
		{"starting engine: listing s3://models/llama: /models returned HTTP status 403: AccessDenied: Access Denied", FailureWeightsDenied},
		{"starting engine: downloading gs://models/llama/a: /storage/v1/b/models/o/a returned HTTP status 401: Unauthorized", FailureWeightsDenied},
		{"starting engine: listing s3://models/llama: getting the machine's credentials: /latest/meta-data/iam/security-credentials/ returned HTTP status 404: the machine has no IAM role; run 'skyserve up' to repair it", FailureWeightsDenied},
		{"starting engine: adapter a: listing gs://models/llama: getting the machine's credentials: /computeMetadata/v1/instance/service-accounts/default/token returned HTTP status 404: the machine has no service account; set gcp.replica_account", FailureWeightsDenied},
		{"starting engine: listing s3://models/llama: /models returned HTTP status 404: NoSuchBucket: The specified bucket does not exist", FailureWeightsNotFound},
		{"starting engine: listing s3://models/llama: no objects found; correct the folder in service.yaml or upload the files to it", FailureWeightsNotFound},

		{"starting engine: docker pull: exit status 1: Error response from daemon: Get \"https://registry-1.docker.io/v2/\": net/http: request canceled while waiting for connection", FailureUnknown},
		{"starting engine: docker pull: exit status 1: toomanyrequests: You have reached your pull rate limit.", FailureUnknown},
		{"starting engine: docker pull: exit status 1: Error response from daemon: received unexpected HTTP status: 503 Service Unavailable", FailureUnknown},
		{"starting engine: listing s3://models/llama: /models returned HTTP status 503: SlowDown: Please reduce your request rate.", FailureUnknown},
		{"starting engine: checking the GPU driver: nvidia-smi -L: exit status 9: NVIDIA-SMI has failed", FailureUnknown},
	} {
		f := ClassifyFailure(Evidence{PrepareError: tt.err, Attempts: 8})
		if f.Kind != tt.want || f.Permanent != (tt.want != FailureUnknown) || f.Message != tt.err || f.Hint == "" {
			t.Errorf("%s: %+v, want %s", tt.err, f, tt.want)
		}
	}
}

// A machine without an identity needs one: neither a permission of its identity nor another folder helps.
func TestHintWithoutIdentity(t *testing.T) {
	const missing = "starting engine: listing s3://models/llama: getting the machine's credentials: /latest/meta-data/iam/security-credentials/ returned HTTP status 404"
	f := ClassifyFailure(Evidence{PrepareError: missing, Attempts: 1})
	if want := "give the machine an identity that may read the bucket: at AWS run 'skyserve up', at Google set gcp.replica_account"; f.Hint != want {
		t.Errorf("the hint is %q, want %q", f.Hint, want)
	}
	kept := keepCause(f, ClassifyFailure(Evidence{Attempts: 2}), false)
	if kept.Hint != f.Hint {
		t.Errorf("the kept hint is %q", kept.Hint)
	}
}

// A failure is permanent after as many attempts as its cause requires.
func TestAttemptsOfPermanentFailures(t *testing.T) {
	oom := []string{"torch.OutOfMemoryError: CUDA out of memory."}
	port := []string{"listening on 127.0.0.1:45102: address already in use"}
	full, free := uint64(1<<20), uint64(1<<40)
	for _, tt := range []struct {
		name      string
		evidence  Evidence
		want      FailureKind
		permanent bool
	}{
		{"one restart", Evidence{Attempts: 1}, FailureUnknown, false},
		{"two restarts", Evidence{Attempts: 2, ExitReason: "exited", ExitCode: 1}, FailureUnknown, false},
		{"three restarts", Evidence{Attempts: 3}, FailureCrashLoop, true},
		{"a first exit", Evidence{ExitReason: "exited", ExitCode: 1}, FailureUnknown, false},
		{"out of memory once", Evidence{Attempts: 1, Lines: oom}, FailureGPUMemory, false},
		{"out of memory again", Evidence{Attempts: 2, Lines: oom}, FailureGPUMemory, true},
		{"a port in use twice", Evidence{Attempts: 2, Lines: port}, FailurePortInUse, false},
		{"a port in use again", Evidence{Attempts: 3, Lines: port}, FailurePortInUse, true},
		{"new permissions", Evidence{Attempts: 2, PrepareError: "listing s3://m/a: HTTP status 403"}, FailureWeightsDenied, false},
		{"no permissions", Evidence{Attempts: 8, PrepareError: "listing s3://m/a: HTTP status 403"}, FailureWeightsDenied, true},
		{"no network", Evidence{Attempts: 100, PrepareError: "docker pull: i/o timeout"}, FailureUnknown, false},
		{"a full disk", Evidence{Attempts: 2, ExitReason: "exited", DiskFree: &full}, FailureNoSpace, true},
		{"an empty disk", Evidence{Attempts: 3, ExitReason: "exited", DiskFree: &free}, FailureCrashLoop, true},
	} {
		if f := ClassifyFailure(tt.evidence); f.Kind != tt.want || f.Permanent != tt.permanent || f.Attempts != tt.evidence.Attempts {
			t.Errorf("%s: %+v, want %s %v", tt.name, f, tt.want, tt.permanent)
		}
	}
	if f := ClassifyFailure(Evidence{Lines: oom, DiskFree: &full}); f != nil {
		t.Errorf("an engine that loads has failed: %+v", f)
	}
	crash := ClassifyFailure(Evidence{Attempts: 3, ExitReason: "container restarting, exit code 1", ExitCode: 1, Lines: []string{"a", "last"}})
	if want := "container restarting, exit code 1: last"; crash.Message != want || !slices.Equal(crash.Lines, []string{"a", "last"}) {
		t.Errorf("%+v, want the message %q", crash, want)
	}
	for _, lines := range [][]string{{"ValueError: no", "", "hint: see --help"}, {"error: ValueError: no", "hint: see the error in the log"}, {"ValueError: no", "hint: see the log"}} {
		if f := ClassifyFailure(Evidence{Attempts: 1, Lines: lines}); f.Message != "the engine restarted: ValueError: no" {
			t.Errorf("%q: the message is %q", lines, f.Message)
		}
	}
	if long := ClassifyFailure(Evidence{ExitReason: "exited", Lines: []string{strings.Repeat("é", 1000)}}); len(long.Lines[0]) > maxLineBytes+3 || !strings.HasSuffix(long.Lines[0], "é...") {
		t.Errorf("a long line: %q", long.Lines[0])
	}
}

// A cause that is known stays known when the log of the next attempt has displaced its lines.
func TestKnownCauseIsKept(t *testing.T) {
	oom := ClassifyFailure(Evidence{Attempts: 1, Lines: []string{"CUDA out of memory"}})
	crash := ClassifyFailure(Evidence{Attempts: 3})
	if f := keepCause(oom, crash, false); f.Kind != FailureGPUMemory || !f.Permanent || f.Attempts != 3 {
		t.Errorf("%+v", f)
	}
	if f := keepCause(crash, oom, false); f != oom {
		t.Errorf("%+v", f)
	}
	if f := keepCause(oom, nil, true); f != nil {
		t.Errorf("%+v", f)
	}
}

// While an engine starts again, its failure is still that of its last exit.
func TestFailureStaysWhileEngineRestarts(t *testing.T) {
	exited := ClassifyFailure(Evidence{Attempts: 2, ExitReason: "exited, exit code 1", Lines: []string{"ValueError: no"}})
	starts := ClassifyFailure(Evidence{Attempts: 3, Lines: []string{"ValueError: no", "INFO starting"}})
	if f := keepCause(exited, starts, true); f.Message != exited.Message || f.Kind != FailureCrashLoop || f.Attempts != 3 || len(f.Lines) != 1 {
		t.Errorf("%+v", f)
	}
	if f := keepCause(exited, starts, false); f != starts {
		t.Errorf("%+v", f)
	}
}

func TestSecretsAreMasked(t *testing.T) {
	u := Unit{Secrets: map[string]string{"HF_TOKEN": "hunter2hunter2", "A": "hunter2", "SHORT": "1"}, ReadinessKey: "engine-key"}
	for text, want := range map[string]string{
		"token hunter2hunter2 and hunter2, engine-key": "token [masked] and [masked], [masked]",
		"1 of 1":                                "1 of 1",
		"using hf_AbCdEfGhIjKlMnOp for the hub": "using [masked] for the hub",
		"Authorization: Bearer abcdefgh.ijk":    "Authorization: Bearer [masked]",
		`{'authorization': 'Basic dXNlcjpwYXNz', 'accept': '*/*'}`:    `{'authorization': 'Basic [masked]', 'accept': '*/*'}`,
		"curl -H Bearer abcdefghijkl":                                 "curl -H Bearer [masked]",
		"key AKIAABCDEFGHIJKLMNOP":                                    "key [masked]",
		"GET /a?X-Amz-Credential=x%2F1&X-Amz-Signature=0123&part=1":   "GET /a?X-Amz-Credential=[masked]&X-Amz-Signature=[masked]&part=1",
		"api_key='sk-abcdefghijklmnopqrst'":                           "api_key='[masked]'",
		"pulling from https://user:password1@registry.example.com/v2": "pulling from https://user:[masked]@registry.example.com/v2",
		"args: --max-model-len 8192, prefix_token_count=12":           "args: --max-model-len 8192, prefix_token_count=12",
	} {
		if got := u.maskSecrets(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}
