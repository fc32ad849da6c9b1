package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/internal/testcloud"
	"skyserve/provision"
	"skyserve/provision/aws"
)

// The files of batches are in the bucket of store_files, with the credentials of the environment, in a folder of the service.
func TestFilesInBucket(t *testing.T) {
	cloud := testcloud.NewAWS(&testcloud.Faults{}, "us-east-1", "eu-west-1")
	srv := httptest.NewServer(cloud)
	defer srv.Close()
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": srv.URL, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		t.Setenv(name, value)
	}
	bucket := createBucket(t)
	files, err := openFiles(t.Context(), service.BalancerConfig{Service: "chat", StoreFiles: "s3://" + bucket + "/batches"})
	if err != nil {
		t.Fatal(err)
	}
	server, err := store.Serve(t.Context(), store.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	st, err := store.Connect(t.Context(), server.URL(), "", store.FilesIn(files))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	content := bytes.Repeat([]byte("0123456789"), 1<<20)
	if n, err := st.WriteObject(t.Context(), "file-1", bytes.NewReader(content)); err != nil || n != int64(len(content)) {
		t.Fatal(n, err)
	}
	if got, err := io.ReadAll(st.ReadObject(t.Context(), "file-1", 5, int64(len(content)-5))); err != nil || !bytes.Equal(got, content[5:]) {
		t.Errorf("%d bytes are read, %v", len(got), err)
	}
	for _, key := range []string{"/batches/chat/file-1.0", "/batches/chat/file-1.1"} {
		if stored := cloud.StoredObjects(); !slices.Contains(stored, bucket+key) {
			t.Errorf("no %s in %q", key, stored)
		}
	}
	if err := st.DeleteObject(t.Context(), "file-1"); err != nil || len(cloud.StoredObjects()) != 1 {
		t.Errorf("%q, %v", cloud.StoredObjects(), err)
	}
	if none, err := openFiles(t.Context(), service.BalancerConfig{}); none != nil || err != nil {
		t.Errorf("without store_files: %v, %v", none, err)
	}
	if _, err := openFiles(t.Context(), service.BalancerConfig{StoreFiles: "ftp://x"}); err == nil {
		t.Error("an unknown scheme is accepted")
	}
}

// createBucket creates a bucket in us-east-1 with a binary and returns its name.
func createBucket(t *testing.T) string {
	t.Helper()
	p, err := aws.New(t.Context(), aws.Config{Regions: []string{"us-east-1"}, Poll: -1, Programs: true})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "skyserve")
	if err := os.WriteFile(file, []byte("binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("binary"))
	hash, bucket := hex.EncodeToString(sum[:]), provision.ProgramBucket("chat", "me", testcloud.AWSAccount)
	if _, err := p.Launch(t.Context(), provision.Desired{
		ID: provision.ProgramID("aws", hash), Kind: provision.KindProgram, Service: "chat", Owner: "me", Region: "aws/global",
		SpecHash: provision.ProgramSpec(hash), Program: &provision.Program{SHA256: hash, Bucket: bucket, File: file},
	}); err != nil {
		t.Fatal(err)
	}
	return bucket
}
