// The LAPACK and BLAS routines that the kernels use, as pointers handed in from outside (column-major, 32-bit
// integers).
//
// The library that holds them is SciPy's: nothing is linked here, and every call goes through the table.
#pragma once

namespace dpinfer::lab {

struct Lapack {
  void (*dpotrf)(char* uplo, int* n, double* a, int* lda, int* info);
  void (*dpotri)(char* uplo, int* n, double* a, int* lda, int* info);
  void (*dsyevd)(char* jobz, char* uplo, int* n, double* a, int* lda, double* w, double* work, int* lwork, int* iwork,
                 int* liwork, int* info);
  void (*dgees)(char* jobvs, char* sort, int (*select)(double*, double*), int* n, double* a, int* lda, int* sdim,
                double* wr, double* wi, double* vs, int* ldvs, double* work, int* lwork, int* bwork, int* info);
  void (*dgesv)(int* n, int* nrhs, double* a, int* lda, int* ipiv, double* b, int* ldb, int* info);
  void (*dtrsyl)(char* trana, char* tranb, int* isgn, int* m, int* n, double* a, int* lda, double* b, int* ldb,
                 double* c, int* ldc, double* scale, int* info);
  void (*dgemm)(char* transa, char* transb, int* m, int* n, int* k, double* alpha, double* a, int* lda, double* b,
                int* ldb, double* beta, double* c, int* ldc);
  void (*dsyrk)(char* uplo, char* trans, int* n, int* k, double* alpha, double* a, int* lda, double* beta, double* c,
                int* ldc);
  void (*dsyr2k)(char* uplo, char* trans, int* n, int* k, double* alpha, double* a, int* lda, double* b, int* ldb,
                 double* beta, double* c, int* ldc);
  void (*dtrmm)(char* side, char* uplo, char* transa, char* diag, int* m, int* n, double* alpha, double* a, int* lda,
                double* b, int* ldb);
};

}  // namespace dpinfer::lab
