package skypilot

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/service"
)

var update = flag.Bool("update", false, "rewrite the converted files")

// Each file of SkyServe becomes the service.yaml beside it, which is valid.
func TestConvert(t *testing.T) {
	files, err := filepath.Glob("testdata/*.sky.yaml")
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, checks, err := Convert(file, data, "")
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if notes := strings.Count(string(got), "\n#   - "); notes != checks {
			t.Errorf("%s: %d notes in the file, %d returned", file, notes, checks)
		}
		if _, err := service.Parse(file, got); err != nil {
			t.Errorf("%s: the result is not valid: %v", file, err)
		}
		golden := strings.TrimSuffix(file, ".sky.yaml") + ".service.yaml"
		if *update {
			if err := os.WriteFile(golden, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s: converted to\n%s\nwant\n%s", file, got, want)
		}
		if strings.Contains(string(got), "not-to-be-copied") {
			t.Errorf("%s: the result contains a secret", file)
		}
	}
}

func TestConvertNamesService(t *testing.T) {
	const minimal = "service: {replicas: 1}\nrun: vllm serve m\n"
	for in, want := range map[string]string{
		minimal:                         "chat",
		"name: My.Model_8B\n" + minimal: "my-model-8b",
		"name: 8b-chat\n" + minimal:     "b-chat",
		"name: \"---\"\n" + minimal:     "chat",
		"name: " + strings.Repeat("ab", 40) + "\n" + minimal:       strings.Repeat("ab", 20),
		"name: llama-3\n" + minimal:                                "llama-3",
		"name: llama-3-\n" + minimal:                               "llama-3",
		"name: " + strings.Repeat("abc", 13) + "-more\n" + minimal: strings.Repeat("abc", 13),
	} {
		text, _, err := Convert("sky.yaml", []byte(in), "")
		if err != nil || !strings.Contains(string(text), "\nname: "+want+"\n") {
			t.Errorf("%q: %v\n%s", in, err, text)
		}
	}
	if text, _, err := Convert("sky.yaml", []byte(minimal), "mine"); err != nil || !strings.Contains(string(text), "\nname: mine\n") {
		t.Errorf("the given name was not used: %v\n%s", err, text)
	}
}

// Replicas are divided among regions so that their sum is at least SkyServe's.
func TestConvertKeepsReplicaCounts(t *testing.T) {
	const places = "\nresources: {any_of: [{infra: aws/us-east-1}, {infra: aws/us-west-2}, {infra: gcp/us-central1}]}\nrun: vllm serve m\n"
	for policy, want := range map[string][2]int{
		"{replicas: 7}": {7, 7},
		"{replica_policy: {min_replicas: 1, max_replicas: 2}}": {1, 2},
		"{replica_policy: {min_replicas: 0, max_replicas: 4}}": {0, 4},
		"{}": {1, 1},
	} {
		text, _, err := Convert("sky.yaml", []byte("service: "+policy+places), "")
		if err != nil {
			t.Errorf("%s: %v", policy, err)
			continue
		}
		spec, err := service.Parse("sky.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		low, high := 0, 0
		for _, r := range spec.Regions {
			low, high = low+r.Replicas.Min, high+r.Replicas.Max
		}
		if low != want[0] || high < want[1] {
			t.Errorf("%s: %d to %d replicas, want %d to at least %d\n%s", policy, low, high, want[0], want[1], text)
		}
	}
}

func TestConvertRejects(t *testing.T) {
	for in, want := range map[string]string{
		"run: vllm serve m\n": "service: is missing",
		"service: [":          "not a task of SkyPilot",
		"service: {replicas: many, secret: hunter2}\nrun: x\n":    "not a task of SkyPilot",
		"service: {replicas: 1}\nname: x\nresources: [hunter2]\n": "not a task of SkyPilot",
	} {
		_, _, err := Convert("sky.yaml", []byte(in), "")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "sky.yaml") {
			t.Errorf("%q: got error %v, want %q", in, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error quotes the file: %v", err)
		}
	}
}

// Whatever the file contains, the result is a valid service.yaml or an error.
func FuzzConvert(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.sky.yaml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Fuzz(func(t *testing.T, in string) {
		if text, _, err := Convert("sky.yaml", []byte(in), ""); err == nil {
			if _, err := service.Parse("sky.yaml", text); err != nil {
				t.Errorf("not valid: %v\n%s", err, text)
			}
		}
	})
}

// The value of a flag that is not known is not taken as the model.
func TestConvertDistinguishesModelAndFlagValues(t *testing.T) {
	for run, want := range map[string]struct {
		name, args string
		note       bool
	}{
		"vllm serve org/m --dtype half":                 {"org/m", "--dtype half", false},
		"vllm serve --dtype half org/m":                 {"org/m", "--dtype half", false},
		"vllm serve --dtype=half org/m":                 {"org/m", "--dtype=half", false},
		"vllm serve --enforce-eager org/m --dtype half": {"org/m", "--enforce-eager --dtype half", true},
		"vllm serve --enforce-eager m":                  {"m", "--enforce-eager", true},
		"vllm serve --port 80 org/m":                    {"org/m", "", false},
		"vllm serve org/m --tensor_parallel_size 2":     {"org/m", "", false},
		"python -m vllm.entrypoints.openai.api_server --gpu-memory-utilization 0.9 --model org/m":      {"org/m", "--gpu-memory-utilization 0.9", false},
		"python -m sglang.launch_server --context-length 8192 --enable-torch-compile --model-path a/b": {"a/b", "--context-length 8192 --enable-torch-compile", false},
	} {
		text, _, err := Convert("sky.yaml", []byte("service: {replicas: 1}\nrun: "+run+"\n"), "")
		if err != nil {
			t.Errorf("%s: %v", run, err)
			continue
		}
		spec, err := service.Parse("sky.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		m := spec.Models[0]
		if args := strings.Join(m.Engine.Args, " "); m.Name != want.name || args != want.args || strings.Contains(string(text), "check that "+m.Name) != want.note {
			t.Errorf("%s: model %s, args %q, want %+v\n%s", run, m.Name, args, want, text)
		}
	}
}

// An alternative inherits the cloud, the region and use_spot that it does not set.
func TestConvertInheritsPlaces(t *testing.T) {
	for resources, want := range map[string]string{
		"{infra: aws, any_of: [{region: us-west-2}]}":                                                        "aws/us-west-2",
		"{infra: aws/us-east-1, any_of: [{region: us-west-2}, {zone: us-east-1b}]}":                          "aws/us-west-2 aws/us-east-1",
		"{cloud: aws, region: us-east-1, any_of: [{}, {infra: gcp/us-east1}]}":                               "aws/us-east-1 gcp/us-east1",
		"{use_spot: true, any_of: [{infra: aws/us-east-1, use_spot: false}, {infra: aws/us-west-2}]}":        "aws/us-east-1 aws/us-west-2+spot",
		"{infra: gcp, use_spot: true, ordered: [{region: us-east1, use_spot: true}, {region: us-central1}]}": "gcp/us-east1+spot gcp/us-central1+spot",
	} {
		text, _, err := Convert("sky.yaml", []byte("service: {replicas: 1}\nresources: "+resources+"\nrun: vllm serve m\n"), "")
		if err != nil {
			t.Errorf("%s: %v", resources, err)
			continue
		}
		spec, err := service.Parse("sky.yaml", text)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range spec.Regions {
			region := string(r.Name)
			if slices.Contains(r.Capacity, service.CapacitySpot) {
				region += "+spot"
			}
			got = append(got, region)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %s, want %s", resources, got, want)
		}
	}
}

// A variable that run expands is in the engine's arguments, others are in its environment.
func TestConvertCopiesUnusedVariables(t *testing.T) {
	const file = "service: {replicas: 1}\nenvs: {HF_HOME: /a, HF_HOME_DIR: /b, SEED: 7, MODE: x, TAIL: z}\n" +
		"run: vllm serve m --download-dir $HF_HOME_DIR --seed=${SEED} --mode ${MODE:-y} --tail $TAIL\n"
	text, _, err := Convert("sky.yaml", []byte(file), "")
	if err != nil {
		t.Fatal(err)
	}
	spec, err := service.Parse("sky.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	if e := spec.Models[0].Engine; len(e.Env) != 1 || e.Env["HF_HOME"] != "/a" || strings.Join(e.Args, " ") != "--download-dir /b --seed=7 --mode x --tail z" {
		t.Errorf("environment %v, arguments %q", e.Env, e.Args)
	}
}

// SkyPilot's variable with the number of GPUs is that of the first accelerator.
func TestConvertCountsGPUs(t *testing.T) {
	const file = "service: {replicas: 1}\nresources: {accelerators: \"H100:8\"}\nrun: vllm serve m --data-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE\n"
	text, _, err := Convert("sky.yaml", []byte(file), "")
	if err != nil || !strings.Contains(string(text), "data_parallel: 8\n") {
		t.Errorf("%v\n%s", err, text)
	}
}
