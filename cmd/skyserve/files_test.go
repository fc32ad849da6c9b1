package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	useEmulatedAWS(t, srv.URL)
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

// Backups are written to, and read from, objects of a bucket with the same client.
func TestBackupsInBucket(t *testing.T) {
	cloud := testcloud.NewAWS(&testcloud.Faults{}, "us-east-1", "eu-west-1")
	srv := httptest.NewServer(cloud)
	defer srv.Close()
	useEmulatedAWS(t, srv.URL)
	bucket := createBucket(t)
	server, err := store.Serve(t.Context(), store.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	st, err := store.Connect(t.Context(), server.URL(), "", store.ForService("chat"))
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := st.Put(t.Context(), "key", []byte("1")); err != nil {
		t.Fatal(err)
	}
	url := "s3://" + bucket + "/daily/chat.backup"
	f, err := openBackupFile(t.Context(), "chat", url)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.open(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing backup: %v", err)
	}
	var report bytes.Buffer
	if err := runRestore(t.Context(), &restoreOptions{name: "chat", file: url, output: outputFlags{output: "text"}}, &report); err == nil || !strings.Contains(err.Error(), "reading the backup: ") {
		t.Errorf("restoring a missing backup: %v", err)
	}
	_, size, err := f.write(t.Context(), func(w io.Writer) error { _, err := st.WriteBackup(t.Context(), w, "chat", "v1"); return err })
	if stored := cloud.StoredObjects(); err != nil || size == 0 || !slices.Contains(stored, bucket+"/daily/chat.backup") {
		t.Fatalf("%d bytes, objects %q, %v", size, stored, err)
	}
	r, err := f.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if b, bad := store.CheckBackup(bytes.NewReader(text)); err != nil || bad != nil || b.Service != "chat" || int64(len(text)) != size {
		t.Errorf("%+v, %d bytes, %v, %v", b, len(text), err, bad)
	}
	if err := runRestore(t.Context(), &restoreOptions{name: "other", file: url, output: outputFlags{output: "text"}}, &report); err == nil || !strings.Contains(err.Error(), "it is a backup of the service chat, not of other") {
		t.Errorf("restoring another service: %v", err)
	}
	for _, url := range []string{"s3://bucket", "s3://", "gs://bucket/folder/"} {
		if _, err := openBackupFile(t.Context(), "chat", url); err == nil || !strings.Contains(err.Error(), "must name an object in a bucket") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// useEmulatedAWS lets AWS's client use an emulated cloud.
func useEmulatedAWS(t *testing.T, url string) {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
	} {
		t.Setenv(name, value)
	}
}

// createBucket creates a bucket in us-east-1 with a binary and returns its name.
func createBucket(t *testing.T) string {
	t.Helper()
	p, err := aws.New(t.Context(), aws.Config{Regions: []string{"us-east-1"}, Poll: -1, Binaries: true})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "skyserve")
	if err := os.WriteFile(file, []byte("binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("binary"))
	hash, bucket := hex.EncodeToString(sum[:]), provision.BinaryBucket("chat", "me", testcloud.AWSAccount)
	if _, err := p.Launch(t.Context(), provision.Desired{
		ID: provision.BinaryID("aws", hash), Kind: provision.KindBinary, Service: "chat", Owner: "me", Region: "aws/global",
		SpecHash: provision.BinarySpecHash(hash), Binary: &provision.Binary{SHA256: hash, Bucket: bucket, File: file},
	}); err != nil {
		t.Fatal(err)
	}
	return bucket
}
