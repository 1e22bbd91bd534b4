"""All access to stored bytes: `Storage`, over local disks and object stores."""
