package service

import (
	"fmt"
	"strings"
)

// FilesFolder is a folder of a bucket in which a service stores the files of its batches, or backups.
type FilesFolder struct {
	Cloud  string // aws for S3, gcp for Cloud Storage
	Bucket string
	Folder string // batches/chat; empty = the whole bucket
}

// FilesFolderOf returns the folder of a service in the bucket of store.files; false if files is not a bucket of S3 or
// Cloud Storage, or is empty. Each service has its own folder, because balancers delete files that no record
// refers to.
func FilesFolderOf(files, name string) (FilesFolder, bool) {
	f, ok := FolderOf(files)
	f.Folder = strings.TrimPrefix(f.Folder+"/"+name, "/")
	return f, ok
}

// FolderOf returns the folder of a URL of S3 or Cloud Storage; false for anything else.
func FolderOf(url string) (FilesFolder, bool) {
	scheme, rest, _ := strings.Cut(url, "://")
	cloud, known := map[string]string{"s3": CloudAWS, "gs": CloudGCP}[scheme]
	bucket, folder, _ := strings.Cut(rest, "/")
	return FilesFolder{cloud, bucket, folder}, known && bucket != ""
}

// checkFiles checks that the machines of rented regions can have access to the bucket for files: they have only the
// identity of their own cloud.
func (c *checker) checkFiles() {
	at := path("store").key("files")
	if c.spec.Store.Files == "" || !c.valid(at) {
		return
	}
	f, _ := FilesFolderOf(c.spec.Store.Files, c.spec.Name)
	for i := range c.spec.Regions {
		if r := &c.spec.Regions[i]; r.Name.Rented() && r.Name.Cloud() != f.Cloud {
			c.reportAtPath(at, Error{
				Problem:    fmt.Sprintf("must be a bucket in the cloud of every region, but the machines of regions[%d], %s, have no identity in %s", i, r.Name, f.Cloud),
				Found:      c.describePath(at),
				Suggestion: "remove it: the files of batches are then in the store",
			})
			return
		}
	}
}
