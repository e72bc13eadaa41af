module github.com/millrace/millrace

go 1.26
