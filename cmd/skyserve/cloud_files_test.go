package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"skyserve/internal/testkit"
)

// The balancers of a service in a cloud store the files of batches in a bucket, and its controllers backups, with the
// identity of their machine.
func TestFilesInBucketOfCloud(t *testing.T) {
	testkit.Slow(t)
	testkit.NotUnderRace(t, "runs processes; other tests cover the same code")
	t.Parallel()
	for name, tt := range map[string]struct {
		region, files, check string
		prepare              func(*emulated) error
		stored               func(*emulated) []string
	}{
		"AWS": {
			"aws/us-east-1", "s3://batches/all", "storing files of batches in s3://batches/all/chat: the bucket is in this AWS account",
			func(e *emulated) error { e.aws.AddBucket("batches", "eu-west-1"); return nil },
			func(e *emulated) []string { return e.aws.StoredObjects() },
		},
		"Google Cloud": {
			"gcp/us-central1", "gs://batches/all", "storing files of batches in gs://batches/all/chat: no problem found",
			func(e *emulated) error {
				e.gce.AddBucket("batches")
				return e.gce.RunGcloud("gcloud storage buckets add-iam-policy-binding gs://batches --member serviceAccount:skyserve-chat-lb@p.iam.gserviceaccount.com --role roles/storage.objectUser")
			},
			func(e *emulated) []string { names, _ := e.gce.StoredObjects(); return names },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := emulate(t)
			e.SetEndpoints(e.url, e.google)
			if err := tt.prepare(e); err != nil {
				t.Fatal(err)
			}
			up := e.upOf(strings.ReplaceAll(oneRegion, "aws/us-east-1", tt.region) + "store: {files: \"" + tt.files + "\", backup: {to: \"" + tt.files + "/saved\", every: 1h}}\n")
			out := e.skyserve(exitOK, append(up, "--dry-run")...)
			for _, check := range []string{tt.check, strings.NewReplacer("files of batches", "backups", "all/chat", "all/saved").Replace(tt.check)} {
				if !strings.Contains(out, "check ok: ") || !strings.Contains(out, check) {
					t.Errorf("no %q in\n%s", check, out)
				}
			}
			base := endpointIn(e.skyserve(exitOK, append(up, "--yes")...), strings.SplitN(tt.region, "/", 2)[1])
			within(t, "a chat", func() error { return chatAt(base, "key-of-a-client") })
			input, output := filepath.Join(e.dir, "in.jsonl"), filepath.Join(e.dir, "out.jsonl")
			line := `{"custom_id":"a-1","method":"POST","url":"/v1/chat/completions","body":{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}}`
			if err := os.WriteFile(input, []byte(line+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			at := []string{"--target", base, "--api-key", "env:KEYS"}
			var submitted struct{ ID string }
			e.document(&submitted, append([]string{"batch", "submit", input, "--wait", "-o", "json"}, at...)...)
			e.skyserve(exitOK, append([]string{"batch", "download", submitted.ID, "-f", output}, at...)...)
			if text, err := os.ReadFile(output); err != nil || strings.Count(string(text), `"custom_id":"a-1"`) != 1 {
				t.Errorf("the output of %s: %s, %v", submitted.ID, text, err)
			}
			stored := tt.stored(e)
			inFolder := slices.DeleteFunc(slices.Clone(stored), func(name string) bool { return !strings.Contains(name, "batches/all/chat/file-") })
			if len(inFolder) < 2 {
				t.Errorf("the input and the output are not in the bucket: %q", stored)
			}
			within(t, "the leader writes a backup", func() error {
				if stored := tt.stored(e); !slices.ContainsFunc(stored, func(name string) bool {
					return strings.Contains(name, "all/saved/chat-") && strings.HasSuffix(name, ".backup")
				}) {
					return fmt.Errorf("stored are %q", stored)
				}
				return nil
			})
			e.skyserve(exitOK, e.at("down", "chat", "--yes")...)
			e.ended()
			if left := tt.stored(e); len(left) < len(inFolder) {
				t.Errorf("down deleted files of the bucket: %q", left)
			}
		})
	}
}
