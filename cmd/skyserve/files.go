package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/provision/aws"
	"skyserve/provision/gcp"
)

// envEndpointStorage is the environment variable of Google's libraries for the endpoint of Cloud Storage.
const envEndpointStorage = "STORAGE_EMULATOR_HOST"

// openFiles returns the bucket with the files of batches of a service; nil if they are in the store. It makes no calls.
func openFiles(ctx context.Context, cfg service.BalancerConfig) (store.CloudBucket, error) {
	if cfg.StoreFiles == "" {
		return nil, nil
	}
	f, known := service.FilesFolderOf(cfg.StoreFiles, cfg.Service)
	if !known {
		return nil, usage(fmt.Errorf("store_files: must be a folder of a bucket such as s3://batches/chat or gs://batches/chat, got %q", cfg.StoreFiles), "")
	}
	return openFolder(ctx, cfg.Service, f.Cloud, f.Bucket, f.Folder)
}

// openBucket returns a folder of a bucket, s3://bucket/folder or gs://bucket/folder, with the credentials of the
// environment, or of the machine in its cloud. It makes no calls.
func openBucket(ctx context.Context, name, url string) (store.CloudBucket, error) {
	f, known := service.FolderOf(url)
	if !known {
		return nil, usage(fmt.Errorf("opening a bucket: must be a URL such as s3://backups/chat or gs://backups/chat, got %q", url), "")
	}
	return openFolder(ctx, name, f.Cloud, f.Bucket, f.Folder)
}

// openFolder returns a folder of a bucket for a service.
func openFolder(ctx context.Context, name, cloud, bucket, folder string) (store.CloudBucket, error) {
	if cloud == service.CloudGCP {
		p := gcp.New(gcp.Config{Service: name, Project: os.Getenv("GOOGLE_CLOUD_PROJECT"), Endpoint: os.Getenv(envEndpointStorage), FilesOnly: true})
		return p.Files(bucket, folder), nil
	}
	// The region of the first call: the one of the bucket is found.
	region := cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1")
	p, err := aws.New(ctx, aws.Config{Regions: []string{region}})
	if err != nil {
		return nil, failed(fmt.Errorf("opening s3://%s/%s: %w", bucket, folder, err), "")
	}
	return p.Files(bucket, folder), nil
}
